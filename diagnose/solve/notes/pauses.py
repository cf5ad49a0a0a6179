"""What to tell of pauses: an evaluation, a checkpoint, a barrier, by the function in which they happen, with their share of the time.

The observer says which functions a rank is in during a few of its steps only (observer/thread/pauses.py). They are there by design, and
told, where they come at equal distances (in steps or in seconds), or where all ranks are in the function in the same steps and some work
there. What one rank does now and then without any rhythm may be a fault: that is for model/episodes.py, and not told here. A rhythm is
asked, too, of what is in all steps and takes longer in these (an evaluation that is written into the loop itself).

A rank only waits in a pause if it spends 0.8 of it inside collectives; else it works there. The others wait for those who
work if they stay in collectives, of the same function or of any other, for at least half of the pause longer than in their median step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.fleet.enclosing import holder_of
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.stats.rhythm import find_period
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.diagnose.text import rank_list, seconds
from rankscope.diagnose.verdict.contract import Suspect
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.arrays import Bools, Floats, Ints

_COLLECTOR = "gc"


@dataclass(frozen=True, slots=True)
class ToldPause:
    """A pause that is there by design: its note, its function, the steps (columns) that it is in, its seconds in each, who works in it."""

    note: Note
    function: StackFrame
    columns: Ints
    seconds: float
    rows: Ints  # ranks


@dataclass(frozen=True, slots=True)
class _Place:
    function: StackFrame
    inside: str
    more: bool  # than in other steps

    @property
    def text(self) -> str:
        """For people: `main (train.py:12), in its call of save`."""
        if self.function.name == _COLLECTOR and not self.function.file:
            return "garbage collection"
        where = f" ({self.function.file.rpartition('/')[2]}:{self.function.line})" if self.function.file else ""
        return f"{self.function.name}{where}" + (f", in its call of {self.inside}," if self.inside else "")


def find(fleet: Fleet) -> list[ToldPause]:
    """The pauses of a job that are there by design, those that take most of the window first."""
    places = sorted(_places(fleet).items(), key=lambda item: -float(fleet.pauses.total_s[item[1]].max()))
    told: list[ToldPause] = []
    waits: list[tuple[_Place, Ints]] = []
    for place, entries in places[: budgets.EXAMINED]:
        working = entries[~_waits(fleet, entries)]
        if not len(working):
            waits.append((place, entries))
        elif (found := _told(fleet, place, entries, working)) is not None:
            told.append(found)
    for place, entries in waits:  # for a pause of another rank, unless there is none
        found = _told(fleet, place, entries, entries)
        if found is not None and not explain(told, found.columns, np.full(len(found.columns), found.seconds)):
            told.append(found)
    return told[: budgets.TOLD]


def place_of(fleet: Fleet, row: int, columns: Ints) -> str:
    """What a rank does in all of these steps and in hardly any other, in words; '' where it is not known."""
    for place, entries in _places(fleet).items():
        mine = entries[fleet.pauses.rank[entries] == row]
        if not place.more and any(np.isin(columns, fleet.pause_columns(entry)).all() for entry in mine.tolist()):
            return place.text
    return ""


def without_accused(notes: Iterable[Note], told: Sequence[ToldPause], suspects: Sequence[Suspect]) -> list[Note]:
    """The notes without those on pauses that a suspect is accused of."""
    accused = {(each.function.name, each.function.file) for each in suspects if each.function is not None}
    gone = [pause.note for pause in told if (pause.function.name, pause.function.file) in accused]
    return [note for note in notes if note not in gone]


def _places(fleet: Fleet) -> dict[_Place, Ints]:
    """Rows of the pauses by function."""
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
    """`entries`: rows of the table in which the function is; `working`: of them those of ranks that work in it."""
    table = fleet.pauses
    lead = int(working[np.argmax(table.total_s[working])])
    columns = fleet.pause_columns(lead)
    if not len(columns):
        return None
    often = _rhythm(fleet, columns)
    if not often:
        # Who only waits may wait for an accident of somebody else; what is in every step may be the noise of a host.
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
    """What takes most of the time is hardly a pause: a loop that plays, then makes some updates, is told by its updates."""
    period = find_period(columns.astype(np.float64))
    if period is None:
        return ""
    one_s = period * float(np.nanmean(fleet.steps.seconds))
    return f"; the job may count {round(period)} of these steps as one, of {seconds(one_s)}"


def _rhythm(fleet: Fleet, columns: Ints) -> str:
    """At which distances these steps come, in words: of steps or, where steps differ in length, of seconds; '' for none."""
    period = find_period(columns.astype(np.float64))
    if period is not None:
        return f"in every {_ordinal(round(period))} step"
    usual_s = median(np.diff(fleet.steps.start_s)) if fleet.steps.count > 1 else 0.0
    begins_s = fleet.steps.start_s[columns]
    if not usual_s > 0 or not np.isfinite(begins_s).all():
        return ""
    period = find_period(begins_s / usual_s)
    return "" if period is None else f"every {seconds(period * usual_s)}"


def _waits(fleet: Fleet, entries: Ints) -> Bools:
    """Which of these rows of the table are of ranks that do nothing but wait there."""
    only: Bools = fleet.pauses.wait_s[entries] >= limits.NEARLY_ALL * fleet.pauses.total_s[entries]
    return only


def _together(fleet: Fleet, entries: Ints, columns: Ints) -> bool:
    """Whether (nearly) all ranks of a job of several are in the function in most of these steps."""
    everyone = len(fleet.ranks)
    if everyone < 2 or len(np.unique(fleet.pauses.rank[entries])) < limits.NEARLY_ALWAYS * everyone:
        return False
    same = [
        np.isin(columns, fleet.pause_columns(entry)).mean() >= limits.HOLDS_LEAST
        for entry in entries[: limits.PEERS_SAMPLED].tolist()
    ]
    return float(np.mean(same)) >= limits.NEARLY_ALWAYS


def _who(fleet: Fleet, working: Ints, columns: Ints, each_s: float) -> str:
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
    """Whether these pauses hold at least half of what most of these steps take more."""
    held = np.zeros(len(columns))
    for pause in told:
        held += np.where(np.isin(columns, pause.columns), pause.seconds, 0.0)
    return len(columns) > 0 and float(np.mean(held >= limits.HOLDS_LEAST * more_s)) >= limits.HOLDS_LEAST


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"
