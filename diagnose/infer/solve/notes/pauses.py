"""Notes on pauses by design (an evaluation, a checkpoint, a barrier), by function and share of
time.

The observer lists functions that a rank is in during a few of its steps only
(observer/thread/pauses.py). They are by design where they come at equal distances (in steps or in
seconds), or where all ranks are in the function in the same steps and some work there. What one
rank does sometimes without any rhythm may be a fault: that is left to model/episodes.py. A function
that is in all steps and takes longer in these (an evaluation written into the loop itself) must
have a rhythm.

A rank only waits in a pause if it spends 0.8 of it inside collectives; else it works there. The
others wait for ranks that work if they stay in collectives, of the same function or of any other,
for at least half of the pause longer than in their median step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.enclosing import holder_of
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.rhythm import find_period
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.diagnose.text import ordinal, rank_list, seconds
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Bools, Floats, Ints

_COLLECTOR = "gc"


@dataclass(frozen=True, slots=True)
class ToldPause:
    """A pause by design: its note, function, steps (columns), and seconds in each.

    `rows`: the ranks that work in it.
    """

    note: Note
    function: StackFrame
    columns: Ints
    seconds: float
    rows: Ints  # ranks


@dataclass(frozen=True, slots=True)
class _Place:
    """A place at which ranks pause: a function, and the library function `inside` it ('' if none)."""

    function: StackFrame
    inside: str
    more: bool  # it takes more there than in other steps

    @property
    def text(self) -> str:
        """The place in words: `main (train.py:12), in its call of save`."""
        if self.function.name == _COLLECTOR and not self.function.file:
            return "garbage collection"
        where = f" ({self.function.file.rpartition('/')[2]}:{self.function.line})" if self.function.file else ""
        return f"{self.function.name}{where}" + (f", in its call of {self.inside}," if self.inside else "")


def find(fleet: Fleet) -> list[ToldPause]:
    """Return the pauses of a job that are by design, those that take most of the window first."""
    places = sorted(_places(fleet).items(), key=lambda item: -float(fleet.pauses.total_s[item[1]].max()))
    told: list[ToldPause] = []
    waits: list[tuple[_Place, Ints]] = []
    for place, entries in places[: budgets.EXAMINED]:
        working = entries[~_waits(fleet, entries)]
        if not len(working):
            waits.append((place, entries))
        elif (found := _told(fleet, place, entries, working)) is not None:
            told.append(found)
    for place, entries in waits:  # a wait is for a pause of another rank, unless there is none
        found = _told(fleet, place, entries, entries)
        if found is not None and not explain(told, found.columns, np.full(len(found.columns), found.seconds)):
            told.append(found)
    return told[: budgets.TOLD]


def place_of(fleet: Fleet, row: int, columns: Ints) -> str:
    """What a rank does in all of these steps and in hardly any other, in words; '' if unknown."""
    for place, entries in _places(fleet).items():
        mine = entries[fleet.pauses.rank[entries] == row]
        if not place.more and any(np.isin(columns, fleet.pause_columns(entry)).all() for entry in mine.tolist()):
            return place.text
    return ""


def without_accused(notes: Iterable[Note], told: Sequence[ToldPause], suspects: Sequence[Suspect]) -> list[Note]:
    """Drop the notes on pauses whose function is a suspect."""
    accused = {(each.function.name, each.function.file) for each in suspects if each.function is not None}
    gone = [pause.note for pause in told if (pause.function.name, pause.function.file) in accused]
    return [note for note in notes if note not in gone]


def _places(fleet: Fleet) -> dict[_Place, Ints]:
    """Group the rows of the table of pauses by place."""
    table = fleet.pauses
    lines: dict[tuple[str, str], int] = {}
    for frame in fleet.patterns.stack.frames:
        lines.setdefault((frame.name, frame.file), frame.line)
    key = np.column_stack([table.name.codes, table.file.codes, table.line, table.inside.codes, table.more]).reshape(
        -1, 5
    )
    each, number, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(number.reshape(-1), kind="stable"), np.cumsum(count)[:-1])
    found: dict[_Place, list[Ints]] = {}
    for (name, file, line, inside, more), mine in zip(each.tolist(), rows, strict=False):
        frame = StackFrame(table.name.values[name], table.file.values[file], line)
        place = _Place(holder_of(frame, (), lines), table.inside.values[inside], bool(more))
        found.setdefault(place, []).append(mine)
    return {place: np.concatenate(parts) for place, parts in found.items()}


def _told(fleet: Fleet, place: _Place, entries: Ints, working: Ints) -> ToldPause | None:
    """Return the pause with its note if it recurs regularly or nearly all ranks make it in the same steps; else None.

    `entries`: rows of the table with the function; `working`: those of ranks that work in it.
    """
    table = fleet.pauses
    lead = int(working[np.argmax(table.total_s[working])])
    columns = fleet.pause_columns(lead)
    if not len(columns):
        return None
    often = _rhythm(fleet, columns)
    if not often:
        # A rank that only waits may wait for an accident elsewhere; what is in every step may be
        # noise.
        if place.more or _waits(fleet, working).all() or not _together(fleet, entries, columns):
            return None
        count, of = int(table.count[lead]), int(np.isfinite(fleet.steps.seconds[table.rank[lead]]).sum())
        often = f"in {count} of {of} steps" if count > 1 else "once"
    share = 100 * median(table.total_s[working]) / fleet.seconds
    each_s = median(table.p50_s[working])
    more = "more " if place.more else ""
    took = f"{place.text} takes {seconds(each_s)} {more}{often}{_who(fleet, working, columns, each_s)}"
    text = f"{took}: {share:.2g} % of the window"
    if share >= 100 * limits.HOLDS_LEAST:
        text += _iteration(fleet, columns)
    return ToldPause(Note(NoteCode.PAUSE, text), place.function, columns, each_s, table.rank[working])


def _iteration(fleet: Fleet, columns: Ints) -> str:
    """Words on what the job may count as one step, where a "pause" takes most of the time.

    A loop that plays, then makes some updates, is recognised by its updates.
    """
    period = find_period(columns.astype(np.float64))
    if period is None:
        return ""
    one_s = period * float(np.nanmean(fleet.steps.seconds))
    return f"; the job may count {round(period)} of these steps as one, of {seconds(one_s)}"


def _rhythm(fleet: Fleet, columns: Ints) -> str:
    """Words on the regular distance of these steps (columns), in steps, else in seconds; '' if irregular."""
    period = find_period(columns.astype(np.float64))
    if period is not None:
        return f"in every {ordinal(round(period))} step"
    usual_s = median(np.diff(fleet.steps.start_s)) if fleet.steps.count > 1 else 0.0
    begins_s = fleet.steps.start_s[columns]
    if not usual_s > 0 or not np.isfinite(begins_s).all():
        return ""
    period = find_period(begins_s / usual_s)
    return "" if period is None else f"every {seconds(period * usual_s)}"


def _waits(fleet: Fleet, entries: Ints) -> Bools:
    """Mask of these rows of the table: ranks that only wait there, inside collectives."""
    only: Bools = fleet.pauses.wait_s[entries] >= limits.NEARLY_ALL * fleet.pauses.total_s[entries]
    return only


def _together(fleet: Fleet, entries: Ints, columns: Ints) -> bool:
    """Whether nearly all ranks of a job of several are in the function in most of these steps."""
    everyone = len(fleet.ranks)
    if everyone < 2 or len(np.unique(fleet.pauses.rank[entries])) < limits.NEARLY_ALWAYS * everyone:
        return False
    same = [
        np.isin(columns, fleet.pause_columns(entry)).mean() >= limits.HOLDS_LEAST
        for entry in entries[: limits.PEERS_SAMPLED].tolist()
    ]
    return float(np.mean(same)) >= limits.NEARLY_ALWAYS


def _who(fleet: Fleet, working: Ints, columns: Ints, each_s: float) -> str:
    """Words on who pauses and who waits for it: ' on rank 0, while all others wait for it'; '' for one rank.

    `working`: rows of the table; `columns`: steps of the pause; `each_s`: seconds of one pause.
    """
    everyone = len(fleet.ranks)
    rows = np.unique(fleet.pauses.rank[working])
    if everyone < 2:
        return ""
    verb = ", waiting for others," if _waits(fleet, working).all() else ""
    if len(rows) >= limits.NEARLY_ALWAYS * everyone:
        return f"{verb} on all ranks" if everyone > 2 else f"{verb} on both ranks"
    who = rank_list(tuple(int(number) for number in fleet.ranks.number[rows]))
    others = np.setdiff1d(np.arange(everyone), rows)[: limits.PEERS_SAMPLED]
    wait = fleet.steps.wait_s[others]
    more = nan_median(wait[:, columns], 1) - nan_median(wait, 1)
    if float(np.mean(np.nan_to_num(more) >= limits.HOLDS_LEAST * each_s)) < limits.NEARLY_ALWAYS:
        return f"{verb} on {who}"
    if len(others) == 1:
        return f"{verb} on {who}, while rank {int(fleet.ranks.number[others[0]])} waits for it"
    return f"{verb} on {who}, while all others wait for {'it' if len(rows) == 1 else 'them'}"


def explain(told: Sequence[ToldPause], columns: Ints, more_s: Floats) -> bool:
    """Whether these pauses explain at least half of the excess in at least half of these steps.

    `columns`: the steps; `more_s`: seconds by which each is longer.
    """
    held = np.zeros(len(columns))
    for pause in told:
        held += np.where(np.isin(columns, pause.columns), pause.seconds, 0.0)
    return len(columns) > 0 and float(np.mean(held >= limits.HOLDS_LEAST * more_s)) >= limits.HOLDS_LEAST
