"""Activities in which a thread waited: segments of its timeline that are no running, each under the name of what it waits in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import functions, syscalls, timeline
from rankscope.observer.thread.activities import Activities
from rankscope.observer.thread.functions import NO_STACK, FunctionKey, StackName
from rankscope.observer.thread.samples import Samples, Words
from rankscope.observer.thread.timeline import Absences, Timeline
from rankscope.probes.arrays import Bools, Ints

_GIL_GAP_S = 0.001  # between two looks at the GIL that belong to one wait
_ABSENCE, _COLLECTIVE, _FILE, _COLLECTION, _GIL_TURN, _DEVICE = range(6)  # what an activity is one of


@dataclass(frozen=True, slots=True)
class _Waits:
    """What is needed to name a segment: the timeline's inputs, and the stack of each of its scopes."""

    line: Timeline
    absences: Absences
    words: Words
    throttled: Bools
    turn: Ints
    of_file: dict[int, int]
    of_collective: dict[int, int]
    of_collection: dict[int, int]
    of_device: dict[int, int]

    def name(self, segment: int) -> tuple[FunctionKey, int, int]:
        """The function of a segment, and which activity it is part of: of what, and which one."""
        line, words = self.line, self.words
        kind, away, file = int(line.kind[segment]), int(line.absence[segment]), int(line.file[segment])
        stack = words.stack(int(self.absences.stack[away])) if away >= 0 else NO_STACK
        if kind == timeline.SCHED:
            why = "throttled" if self.throttled[segment] else "queue"
            return functions.waiting("sched", "ready", why, stack, "cpu"), _ABSENCE, away
        if kind == timeline.STOPPED:
            return functions.waiting("sched", "stopped", "job control", stack, "cpu"), _ABSENCE, away
        if kind == timeline.COLLECTIVE:
            one = int(line.collective[segment])
            return words.collective[one].called_from(words.stack(self.of_collective.get(one, 0))), _COLLECTIVE, one
        if kind in (timeline.GPU_WAIT, timeline.COPY, timeline.KERNELS):
            one = int(line.device[segment])
            return words.device[one].called_from(words.stack(self.of_device.get(one, 0))), _DEVICE, one
        if kind == timeline.GC:
            one = int(line.gc[segment])
            return functions.collector(words.stack(self.of_collection.get(one, 0))), _COLLECTION, one
        if file >= 0:
            return words.file[file].called_from(words.stack(self.of_file.get(file, 0))), _FILE, file
        if kind == timeline.SLEEP:
            return functions.python(stack, "sleep"), _ABSENCE, away
        return self._blocked("io" if kind == timeline.IO else "sync", away, stack)

    def _blocked(self, kind: str, away: int, stack: StackName) -> tuple[FunctionKey, int, int]:
        if away < 0:
            return functions.waiting(kind, "unknown", "", stack), _ABSENCE, away
        syscall = int(self.absences.syscall[away])
        what = syscalls.reason(syscall, int(self.absences.argument[away]))
        if syscall != syscalls.GIL:
            return functions.waiting(kind, what, self.words.targets.get(away, ""), stack), _ABSENCE, away
        holder = self.words.gil.get((stack.name, stack.file, stack.line))
        return functions.waiting(kind, what, "", stack, holder=holder), _GIL_TURN, int(self.turn[away])


def add_waits(
    found: dict[FunctionKey, Activities], line: Timeline, absences: Absences, samples: Samples, words: Words,
    steps: FoundSteps, hz: float, throttled_s: float,
) -> None:  # fmt: skip
    """Add what the thread waited in. Segments of one absence or scope that have the same name are one activity."""
    wanted = np.flatnonzero((line.kind != timeline.CPU) & (line.seconds > 0))
    if not len(wanted):
        return
    of_collection = _scope_stacks(line.gc, line, absences, samples)
    _nearest_stacks(of_collection, line, samples, 2 / hz)
    waits = _Waits(
        line, absences, words, _throttled(line, throttled_s), _gil_turns(absences),
        of_file=_scope_stacks(line.file, line, absences, samples),
        of_collective=_scope_stacks(line.collective, line, absences, samples),
        of_collection=of_collection,
        of_device=_scope_stacks(line.device, line, absences, samples),
    )  # fmt: skip
    step, seconds = steps.index((line.start_s + line.end_s) / 2), line.seconds
    moved = {_COLLECTIVE: words.collective_bytes, _FILE: words.file_bytes, _DEVICE: words.device_bytes}
    for (function, source, identity), segments in _by_name(waits, wanted):
        activities = found.setdefault(function, Activities())
        activities.add(np.array([seconds[segments].sum()]), step[segments[:1]])
        if len(moved.get(source, ())):
            activities.bytes += max(int(moved[source][identity]), 0)


def _by_name(waits: _Waits, wanted: Ints) -> Iterator[tuple[tuple[FunctionKey, int, int], Ints]]:
    """The names of these segments, each with its segments, in order. Pieces of one absence or scope are many, cut where other threads
    stood in the run queue: what is alike in all that a name is made of is named once."""
    line = waits.line
    columns = (line.kind, waits.throttled, line.absence, line.collective, line.file, line.gc, line.device)
    alike = _numbered(np.stack([column[wanted] for column in columns], axis=1).astype(np.int64))
    first = np.unique(alike, return_index=True)[1]
    numbers: dict[tuple[FunctionKey, int, int], int] = {}
    number = np.zeros(len(first), dtype=np.int64)
    for at in np.argsort(first).tolist():
        number[at] = numbers.setdefault(waits.name(int(wanted[first[at]])), len(numbers))
    named = number[alike]
    segments = wanted[np.argsort(named, kind="stable")]
    return zip(numbers, np.split(segments, np.cumsum(np.bincount(named))[:-1]), strict=True)


def _numbered(rows: Ints) -> Ints:
    """A number for each row, from 0, the same for rows that are alike. Column by column: to sort whole rows takes ten times as long."""
    numbers = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        value = np.unique(column, return_inverse=True)[1]
        numbers = np.unique(numbers * (int(value.max()) + 1) + value, return_inverse=True)[1]
    return numbers


def _scope_stacks(scope: Ints, line: Timeline, absences: Absences, samples: Samples) -> dict[int, int]:
    """A stack for each scope: that of the first absence or, failing that, the first sample inside it."""
    found: dict[int, int] = {}
    inside = np.flatnonzero((scope >= 0) & (line.absence >= 0))
    inside = inside[np.unique(scope[inside], return_index=True)[1]]
    found = dict(zip(scope[inside].tolist(), absences.stack[line.absence[inside]].tolist(), strict=True))
    if len(line.start_s):
        at = np.clip(np.searchsorted(line.start_s, samples.time_s, side="right") - 1, 0, None)
        sampled = np.flatnonzero(scope[at] >= 0)
        sampled = sampled[np.unique(scope[at[sampled]], return_index=True)[1]]
        found = dict(zip(scope[at[sampled]].tolist(), samples.stack[sampled].tolist(), strict=True)) | found
    return found


def _nearest_stacks(found: dict[int, int], line: Timeline, samples: Samples, within_s: float) -> None:
    """For collections too short to hold a sample: the stack of the nearest one, if there is one `within_s`."""
    if not len(samples.time_s):
        return
    for segment in np.flatnonzero(line.gc >= 0):
        if int(line.gc[segment]) not in found:
            middle = float(line.start_s[segment])
            after = int(np.clip(np.searchsorted(samples.time_s, middle), 1, max(len(samples.time_s) - 1, 1)))
            near = min(
                (after - 1, min(after, len(samples.time_s) - 1)), key=lambda at: abs(samples.time_s[at] - middle)
            )
            if abs(float(samples.time_s[near]) - middle) <= within_s:
                found[int(line.gc[segment])] = int(samples.stack[near])


def _gil_turns(absences: Absences) -> Ints:
    """Number of the wait that each absence is part of: who waits for the GIL looks up every 5 ms and waits on."""
    gil = absences.syscall == syscalls.GIL
    goes_on = np.zeros(len(gil), dtype=bool)
    goes_on[1:] = gil[1:] & gil[:-1] & (absences.start_s[1:] - absences.end_s[:-1] < _GIL_GAP_S)
    return np.cumsum(~goes_on).astype(np.int64)


def _throttled(line: Timeline, throttled_s: float) -> Bools:
    """The longest waits for the CPU, up to the time the quota is known to have taken: throttled waits are the long ones."""
    marked = np.zeros(len(line.kind), dtype=bool)
    waits = np.flatnonzero(line.kind == timeline.SCHED)
    order = waits[np.argsort(-line.lengths[waits])]
    spent = np.cumsum(line.lengths[order]) - line.lengths[order] / 2
    marked[order[spent <= throttled_s]] = True
    return marked
