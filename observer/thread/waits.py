"""Waiting activities: segments of a timeline other than running, named by what they wait in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import functions, syscalls, timeline
from rankscope.observer.thread.activities import Activities
from rankscope.observer.thread.functions import NO_STACK, FunctionKey, StackName
from rankscope.observer.thread.samples import Samples, Words
from rankscope.observer.thread.timeline import Absences, Timeline
from rankscope.probes.base.arrays import Bools, Floats, Ints

_IN_TURN = 8  # numpy adds fewer values one after the other
_GIL_GAP_S = 0.001  # between two looks at the GIL that belong to one wait
_ABSENCE, _COLLECTIVE, _FILE, _COLLECTION, _GIL_TURN, _DEVICE = range(6)  # what an activity consists of


@dataclass(frozen=True, slots=True)
class _Waits:
    """Inputs for naming segments: the timeline's inputs, and the stack of each scope."""

    line: Timeline
    absences: Absences
    words: Words
    throttled: Bools
    turn: Ints
    of_file: dict[int, int]
    of_collective: dict[int, int]
    of_collection: dict[int, int]
    of_device: dict[int, int]

    def name(self, segment: int) -> tuple[FunctionKey, int]:
        """Return the function of a segment, and the kind of unit its activities are."""
        line, words = self.line, self.words
        kind, away, file = int(line.kind[segment]), int(line.absence[segment]), int(line.file[segment])
        stack = words.stack(int(self.absences.stack[away])) if away >= 0 else NO_STACK
        if kind == timeline.SCHED:
            why = "throttled" if self.throttled[segment] else "queue"
            return functions.waiting("sched", "ready", why, stack, "cpu"), _ABSENCE
        if kind == timeline.STOPPED:
            return functions.waiting("sched", "stopped", "job control", stack, "cpu"), _ABSENCE
        if kind == timeline.COLLECTIVE:
            one = int(line.collective[segment])
            return words.collective[one].called_from(words.stack(self.of_collective.get(one, 0))), _COLLECTIVE
        if kind in (timeline.GPU_WAIT, timeline.COPY, timeline.KERNELS):
            one = int(line.device[segment])
            return words.device[one].called_from(words.stack(self.of_device.get(one, 0))), _DEVICE
        if kind == timeline.GC:
            one = int(line.gc[segment])
            return functions.collector(words.stack(self.of_collection.get(one, 0))), _COLLECTION
        if file >= 0:
            return words.file[file].called_from(words.stack(self.of_file.get(file, 0))), _FILE
        if kind == timeline.SLEEP:
            return functions.python(stack, "sleep"), _ABSENCE
        return self._blocked("io" if kind == timeline.IO else "sync", away, stack)

    def _blocked(self, kind: str, away: int, stack: StackName) -> tuple[FunctionKey, int]:
        """Name a blocked segment, and its kind of unit, as `name` does.

        `kind`: io or sync; `away`: its absence, -1 for none.
        """
        if away < 0:
            return functions.waiting(kind, "unknown", "", stack), _ABSENCE
        syscall = int(self.absences.syscall[away])
        what = syscalls.reason(syscall, int(self.absences.argument[away]))
        if syscall != syscalls.GIL:
            return functions.waiting(kind, what, self.words.targets.get(away, ""), stack), _ABSENCE
        holder = self.words.gil.get((stack.name, stack.file, stack.line))
        return functions.waiting(kind, what, "", stack, holder=holder), _GIL_TURN

    def alike(self, wanted: Ints) -> Ints:
        """Number these segments by what their names depend on: equal numbers, equal names.

        Absences are compared by content, since a thread may have a million.
        """
        line, absences = self.line, self.absences
        targets = {target: number for number, target in enumerate(dict.fromkeys(self.words.targets.values()), 1)}
        target = np.zeros(len(absences.stack) + 1, dtype=np.int64)  # last: for no absence
        for one, words in self.words.targets.items():
            target[one] = targets[words]
        away = line.absence[wanted]
        of_absence = (
            np.append(absences.stack, np.uint64(0)), np.append(absences.syscall, -1), np.append(absences.argument == 0, False), target,
        )  # fmt: skip
        of_line = (line.absence >= 0, line.kind, self.throttled, line.collective, line.file, line.gc, line.device)
        columns = itertools.chain((column[away] for column in of_absence), (column[wanted] for column in of_line))
        return _numbered(len(wanted), columns)

    def one_of(self, source: Ints, wanted: Ints) -> Ints:
        """Return which absence, scope or GIL wait each of these segments is part of; `source`: the kind of it."""
        line = self.line
        turn = np.append(self.turn, timeline.NONE)[line.absence[wanted]]
        which = (line.absence, line.collective, line.file, line.gc, None, line.device)
        found = turn
        for number, column in enumerate(which):
            if column is not None:
                found = np.where(source == number, column[wanted], found)
        return found


def add_waits(
    found: dict[FunctionKey, Activities], line: Timeline, absences: Absences, samples: Samples, words: Words,
    steps: FoundSteps, hz: float, throttled_s: float,
) -> None:  # fmt: skip
    """Add the thread's waits to `found`; segments of one absence or scope with the same name are one activity."""
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
    moved = {_COLLECTIVE: words.collective_bytes, _FILE: words.file_bytes, _DEVICE: words.device_bytes}
    step = steps.index((line.start_s + line.end_s) / 2)
    for function, sources, which, seconds, first in _by_function(waits, wanted, line.seconds):
        activities = found.setdefault(function, Activities())
        activities.add_each(seconds, step[first])
        for source, size in moved.items():
            if len(size):
                activities.bytes += sum(np.maximum(size[which[sources == source]], 0).tolist())


def _by_function(
    waits: _Waits, wanted: Ints, seconds: Floats
) -> Iterator[tuple[FunctionKey, Ints, Ints, Floats, Ints]]:
    """Yield, per function, its activities in order of begin: kind of unit, which one, seconds and
    first segment.
    """
    alike = waits.alike(wanted)
    first = np.unique(alike, return_index=True)[1]
    numbers: dict[FunctionKey, int] = {}
    number, source = np.zeros(len(first), dtype=np.int64), np.zeros(len(first), dtype=np.int64)
    for at in np.argsort(first).tolist():
        function, source[at] = waits.name(int(wanted[first[at]]))
        number[at] = numbers.setdefault(function, len(numbers))
    functions_of, sources = number[alike], source[alike]
    which = waits.one_of(sources, wanted)
    activity = _numbered(len(wanted), (functions_of, sources, which))
    order = np.argsort(activity, kind="stable")
    begins = np.flatnonzero(np.diff(activity[order], prepend=-1))
    sums = _sums_of(seconds[wanted[order]], begins)
    begun = order[begins]  # the first segment of each activity
    in_order = np.lexsort((begun, functions_of[begun]))
    edges = np.searchsorted(functions_of[begun][in_order], np.arange(len(numbers) + 1)).tolist()
    for name, begin, end in zip(numbers, edges[:-1], edges[1:], strict=True):
        mine = in_order[begin:end]
        yield name, sources[begun[mine]], which[begun[mine]], sums[mine], wanted[begun[mine]]


def _sums_of(values: Floats, begins: Ints) -> Floats:
    """Sum the values from each begin to the next, rounding exactly as numpy's sum of each part."""
    sums: Floats = np.add.reduceat(values, begins)
    lengths = np.diff(begins, append=len(values))
    for at in np.flatnonzero(lengths >= _IN_TURN).tolist():
        sums[at] = values[begins[at] : begins[at] + lengths[at]].sum()
    return sums


def _numbered(count: int, columns: Iterable[npt.NDArray[Any]]) -> Ints:
    """Number `count` rows, given by their columns, so that equal rows have equal numbers, from 0.

    Column by column: sorting whole rows takes ten times as long.
    """
    numbers = np.zeros(count, dtype=np.int64)
    for column in columns:
        value = np.unique(column, return_inverse=True)[1]
        numbers = np.unique(numbers * (int(value.max()) + 1) + value, return_inverse=True)[1]
    return numbers


def _scope_stacks(scope: Ints, line: Timeline, absences: Absences, samples: Samples) -> dict[int, int]:
    """Return a stack for each scope: that of the first absence or, failing that, the first sample inside it.

    `scope`: by segment of the timeline its scope, negative for none.
    """
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
    """Add to `found` the stacks of garbage collections without one: of the nearest sample within `within_s` seconds."""
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
    """Number the waits that absences are part of, one number per absence.

    A waiter for the GIL wakes every 5 ms and waits on: these absences are one wait.
    """
    gil = absences.syscall == syscalls.GIL
    goes_on = np.zeros(len(gil), dtype=bool)
    goes_on[1:] = gil[1:] & gil[:-1] & (absences.start_s[1:] - absences.end_s[:-1] < _GIL_GAP_S)
    return np.cumsum(~goes_on).astype(np.int64)


def _throttled(line: Timeline, throttled_s: float) -> Bools:
    """Return a mask of the segments that wait because of the CPU quota: the longest, up to `throttled_s` in all.

    Throttled waits are the long ones.
    """
    marked = np.zeros(len(line.kind), dtype=bool)
    waits = np.flatnonzero(line.kind == timeline.SCHED)
    order = waits[np.argsort(-line.lengths[waits])]
    spent = np.cumsum(line.lengths[order]) - line.lengths[order] / 2
    marked[order[spent <= throttled_s]] = True
    return marked
