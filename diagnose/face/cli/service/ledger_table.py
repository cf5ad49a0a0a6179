"""A ledger as lines of text, 80 columns or as wide as the terminal. Pure."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from rankscope.diagnose.face.cli.output import wrap
from rankscope.diagnose.service.events import clock
from rankscope.diagnose.service.ledger import recurrence
from rankscope.diagnose.service.ledger.entries import merged
from rankscope.diagnose.service.ledger.entry import PAUSES, RANKS_MOST, Entry, Kind, Ledger, Scope
from rankscope.diagnose.service.ledger.gains import Gain, gains, label, lost_s
from rankscope.diagnose.text import clean, minutes, rank_list, seconds, short

ROWS_MOST = 14
ALIKE_MOST = 3  # rows of one kind, where it is no pause
_LEAST = 0.001  # share of the time of a row of its own
_LARGE = 0.01  # the same of a pause that has neither name nor recurrence
_IN_TURN = 0.75  # share of the ranks here that pause one after the other
_WHAT_LINES = 2
_HEADS = ("WHAT", "RANKS", "COUNT", "EVERY", "EACH", "TIME", "%")
_SIZES = (12, 5, 8, 7, 8, 5)  # of all columns but the first
_NARROW, _LEFT_OUT = 72, (3,)  # on a narrow terminal without EACH
_LATE_S = 600.0  # without news the service does not run any more


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table, as text except for its seconds."""

    what: str
    ranks: str = ""
    count: str = ""
    every: str = ""
    each: str = ""
    spent_s: float = 0.0


def lines(ledger: Ledger, width: int, now: float) -> list[str]:
    """Return a ledger's lines: heading, table, sums, and what would come back first."""
    above = [line for text in heading(ledger, now) for line in wrap(text, "  ", width)]
    return [*above, "", *_table(ledger, width), "", *_sums(ledger, width)]


def name_of(ledger: Ledger) -> str:
    """Name a job: its title and identity."""
    return f"{clean(ledger.title, 60)} [{clean(ledger.job, 120)}]" if ledger.title else clean(ledger.job, 120)


def state_of(ledger: Ledger, now: float) -> str:
    """Say whether a job runs, or how it ended."""
    if ledger.ended:
        return ledger.ended if ledger.ended == "finished" else f"ended: {clean(ledger.ended, 80)}"
    silent_s = now - ledger.until
    if silent_s > _LATE_S + 100 * (ledger.step_s or 0.0):
        return f"last seen {span(silent_s)} ago"
    return "running"


def heading(ledger: Ledger, now: float) -> tuple[str, str]:
    """Name a job, and say how large it is, since when it runs, and whether it still does."""
    here = f"{ledger.world} ranks" if ledger.here >= ledger.world else f"{ledger.here} of {ledger.world} ranks here"
    here = here if ledger.world > 1 else "1 rank"
    runs = f", {ledger.runs} runs" if ledger.runs > 1 else ""
    step = f" of {seconds(ledger.step_s)}" if ledger.step_s else ""
    since = f"{span(ledger.total_s)} since {_day(ledger.began, now)}"
    return name_of(ledger), f"{here}, {since}{runs}, {ledger.steps} steps{step}; {state_of(ledger, now)}"


def unit_of(ledger: Ledger) -> str:
    """Return what hours of all ranks are called: one GPU each, where they use GPUs."""
    return "GPU-hours" if ledger.gpus else "rank-hours"


def _day(at: float, now: float) -> str:
    """Format a begin: the time of day within the last 12 hours, else date and time."""
    if now - at < 43_200:
        return clock(at)
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _table(ledger: Ledger, width: int) -> Iterator[str]:
    """Yield the lines of the table, `width` columns wide, with a last line for all time."""
    total_s = max(ledger.total_s, 1e-9)
    sizes = [0 if width < _NARROW and place in _LEFT_OUT else size for place, size in enumerate(_SIZES)]
    room = width - sum(size + 1 for size in sizes if size)
    yield _line(_HEADS, room, sizes)
    for row in rows(ledger):
        what, *more = textwrap.wrap(row.what, room, subsequent_indent="  ", break_on_hyphens=False)
        share = f"{100 * row.spent_s / total_s:.1f}"
        yield _line((what, row.ranks, row.count, row.every, row.each, span(row.spent_s), share), room, sizes)
        yield from more[: _WHAT_LINES - 1]
    yield _line(("all", "", "", "", "", span(ledger.total_s), "100.0"), room, sizes)


def _line(cells: Sequence[str], room: int, sizes: Sequence[int]) -> str:
    """Lay out one line; columns of size 0 are left out."""
    first, ranks, *numbers = cells
    shown = [short(first, room).ljust(room), short(ranks, sizes[0]).ljust(sizes[0])]
    shown += [cell.rjust(size) for cell, size in zip(numbers, sizes[1:], strict=True) if size]
    return " ".join(shown).rstrip()


def rows(ledger: Ledger) -> Iterator[Row]:
    """Yield the rows: productive time, what took most first, and the rest as one."""
    total_s = max(ledger.total_s, 1e-9)
    yield Row("productive", count=str(ledger.steps), each=span(ledger.step_s or 0.0), spent_s=ledger.productive_s)
    entries = sorted(_grouped(ledger.entries), key=lambda entry: -entry.seconds)
    shown = [entry for entry in entries if _has_row(entry, ledger, total_s)][:ROWS_MOST]
    rest = [entry for entry in entries if entry not in shown]
    for entry in shown:
        yield _row(entry, ledger)
    count = sum(entry.count for entry in rest) + ledger.others[0]
    if count:
        spent_s = sum(entry.seconds for entry in rest) + ledger.others[1]
        yield Row("others", "", str(count), "", span(spent_s / count), spent_s)


def _grouped(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the entries; of a kind that is no pause at most `ALIKE_MOST`, else one that is their sum."""
    of_kind: dict[Kind, list[Entry]] = {}
    for entry in entries:
        of_kind.setdefault(entry.kind, []).append(entry)
    for kind, mine in of_kind.items():
        if kind in PAUSES or len(mine) <= ALIKE_MOST:
            yield from mine
        else:
            yield reduce(merged, (replace(entry, what="") for entry in mine))


def _has_row(entry: Entry, ledger: Ledger, total_s: float) -> bool:
    """Tell whether an entry gets a row: a hang, a downtime, or enough time (less if its cause or recurrence is known)."""
    if entry.kind in (Kind.DOWN, Kind.HANG) or entry.seconds >= _LARGE * total_s:
        return True
    is_known = entry.is_told_apart or _rhythm(entry, ledger) is not None
    return is_known and entry.seconds >= _LEAST * total_s


def _row(entry: Entry, ledger: Ledger) -> Row:
    """Make the row of an entry."""
    rhythm = _rhythm(entry, ledger)
    every = span(rhythm.seconds) if rhythm is not None and entry.kind in PAUSES else ""
    ranks = ranks_of(entry, ledger) if entry.kind in PAUSES or entry.ranks else ""
    return Row(clean(label(entry), 200), ranks, str(entry.count), every, span(entry.mean_s), entry.seconds)


def _rhythm(entry: Entry, ledger: Ledger) -> recurrence.Recurrence | None:
    """Return the recurrence of an entry; None if it has none."""
    return recurrence.find(entry.recent, ledger.step_s)


def ranks_of(entry: Entry, ledger: Ledger) -> str:
    """Say which ranks work in a pause: `rank 3`, `each in turn`, `changing`, `all`, `all wait`."""
    if ledger.world <= 1:
        return ""
    if entry.scope is Scope.ALL:
        return "all" if ledger.here > 1 else ""
    if entry.scope is Scope.NONE:
        return "all wait" if ledger.here >= ledger.world else "of others"
    if entry.scope is Scope.UNKNOWN or not entry.ranks:
        return "?"
    counts = dict(entry.ranks)
    most = max(counts.values())
    if len(counts) > 2 and len(counts) >= _IN_TURN * min(ledger.here, RANKS_MOST) and most <= entry.count / 2:
        return "each in turn"
    if len(counts) > 2 and len(counts) >= _IN_TURN * min(entry.count, RANKS_MOST):
        return "changing"
    often = tuple(sorted(rank for rank, count in counts.items() if 2 * count >= most))
    return rank_list(often, 2).removeprefix("ranks ")


def _sums(ledger: Ledger, width: int) -> Iterator[str]:
    """Yield the lines with the time that was not productive, and what would come back first."""
    total_h, lost_h = ledger.total_s / 3600, lost_s(ledger) / 3600
    share = 100 * lost_h / total_h if total_h else 0.0
    text = f"Not productive: {hours(lost_h)} of {hours(total_h)} h ({share:.0f} %), "
    yield from wrap(
        f"{text}{hours(lost_h * ledger.world)} of {hours(total_h * ledger.world)} {unit_of(ledger)}.", "  ", width
    )
    found = gains(ledger)
    if found:
        yield from wrap(first_words(found[0], ledger), "  ", width)


def first_words(gain: Gain, ledger: Ledger) -> str:
    """Say what would come back first."""
    spent_h, unit = gain.seconds / 3600, unit_of(ledger)
    often = "once" if gain.count == 1 else f"{gain.count} times"
    action = f": {clean(gain.action, 200)}" if gain.action else ""
    return (
        f"First: {clean(gain.what, 120)}, {often}, {hours(spent_h)} h, {hours(spent_h * ledger.world)} {unit}{action}."
    )


def hours(value: float) -> str:
    """Format hours with two or three significant digits: 0.0042, 0.35, 12.4, 1,234."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 0.1:
        return f"{value:.2f}"
    return f"{value:.2g}" if value >= 0.0001 else "0"


def span(value: float) -> str:
    """Format a duration with two significant digits or more: 2.7 s, 84 s, 2.2 min, 14 min, 8.3 h."""
    if value < 120:
        return seconds(value)
    return f"{value / 60:.2g} min" if value < 597 else minutes(value)
