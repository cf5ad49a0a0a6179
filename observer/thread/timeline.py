"""The training thread's timeline: every instant of the window belongs to one class of work.

In: one thread's events (absences from the CPU, file calls, library calls). Out: segments that do
not overlap and fill the known part of the window, in this order of precedence:

sched       ready but not running (also inside a collective, once woken: what was waited for had come), or inside a collective
            that other threads of the process run, or blocked until one of them has computed (XLA's), while one of these is ready
            but not running: the job waits for our CPU
collective  inside a call that waits for a collective, or runs one on this thread, preempted there as well: a thread that did not sleep
            waited by polling (MPI does); or blocked until another thread wakes it while threads of the
            library are inside a collective (JAX runs its collectives on threads of its own), or, where they run collectives,
            while all threads of the process sleep until one of theirs is woken from outside: nothing here works for it
gpu-wait    inside a call that waits for the GPU          copy   inside a copy between host and GPU
io          inside a file call, or blocked in the kernel without a system call (a page that is read from disk)
sync        blocked for another thread or process: futex, poll, a pipe, a socket
sleep       blocked by its own will: Python called sleep
gc          running the interpreter's garbage collector
cpu         running

Where GPU activity is not seen the training thread's own timeline is the critical path (DESIGN.md,
"Vocabulary"), and some of its waits for the GPU turn out to be for kernels of the rank's own
(`kernels`, observer/gpu/own_waits.py). Where it is seen, `share` is the part of each segment on the
critical path: while the GPU was idle (observer/gpu/overlay.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.observer.thread import syscalls
from rankscope.probes.base.arrays import Bools, Floats, Ints

CPU, SCHED, COLLECTIVE, IO, SYNC, SLEEP, STOPPED, GC, GPU_WAIT, COPY, KERNELS = range(11)
NONE = -1

_UNINTERRUPTIBLE, _STOPPED = 0x2, 0x4 | 0x8
_RUNNABLE = 0  # it did not leave by itself: another thread took its CPU


@dataclass(frozen=True, slots=True)
class Absences:
    """Times off the CPU of one thread, in order, not overlapping. Seconds since the window's start."""

    start_s: Floats
    end_s: Floats
    ready_s: Floats
    syscall: Ints
    argument: Ints
    state: Ints
    stack: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Scopes:
    """Calls of one thread (file or library calls); `label` indexes the caller's names for them."""

    start_s: Floats
    end_s: Floats
    label: Ints


NO_SCOPES = Scopes(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Carried:
    """Collectives that threads of a library run for this one: disjoint times in order; labels as in
    Timeline.collective.

    `waiting`: for each absence whether it can be a wait for them: another thread of the process
    ends it.
    `asleep`: when all threads of the process slept until one of a library was woken (disjoint, in
    order; labels as in Timeline.collective: of the collective that comes next).
    """

    scopes: Scopes
    waiting: Bools
    asleep: Scopes


@dataclass(frozen=True, slots=True)
class Timeline:
    """Segments in order. `absence`, `collective`, … index the inputs they come from, -1 where there
    is none.

    `share`: the part of each segment that is on the critical path; None: all of it.
    """

    start_s: Floats
    end_s: Floats
    kind: Ints
    absence: Ints
    collective: Ints
    file: Ints
    gc: Ints
    device: Ints
    share: Floats | None = None

    @property
    def lengths(self) -> Floats:
        """Seconds from start to end of each segment."""
        return self.end_s - self.start_s

    @property
    def seconds(self) -> Floats:
        """Seconds of each segment that are on the critical path."""
        return self.lengths if self.share is None else self.lengths * self.share


def build(
    window_s: float,
    absences: Absences,
    collectives: Scopes,
    files: Scopes,
    *,
    file_kinds: Ints,
    edges_s: Floats,
    queued: Scopes | None = None,
    carried: Carried | None = None,
    collections: Scopes | None = None,
    device: Scopes | None = None,
    device_kinds: Ints | None = None,
    known_from_s: float = 0.0,
) -> Timeline:
    """Cut [known_from_s, window_s) at every boundary and classify each piece. Of nested scopes the
    outermost counts.

    `collections`: garbage collections. `device`: calls that wait for the GPU or copy,
    `device_kinds[label]` their class.
    `queued`: when other threads of the process were in the run queue (they may overlap).
    `file_kinds[label]` is the class of a file call (IO for a file, SYNC for a pipe); `edges_s` are
    further cuts. Long for its many arguments.
    """
    collectives, collective_ids = _outermost(collectives)
    files, file_ids = _outermost(files)
    wake = absences.end_s - absences.ready_s
    collections, gc_ids = _outermost(collections if collections is not None else NO_SCOPES)
    device, device_ids = _outermost(device if device is not None else NO_SCOPES)
    queue_start, queue_end = union(queued) if queued is not None else (np.empty(0), np.empty(0))
    by_library = (carried.scopes, carried.asleep) if carried else (NO_SCOPES, NO_SCOPES)
    scopes = (collectives, files, collections, device, *by_library)
    edges = [absences.start_s, wake, absences.end_s, edges_s, queue_start, queue_end]
    edges += [edge for each in scopes for edge in (each.start_s, each.end_s)]
    edges = [np.concatenate([[known_from_s, window_s], *edges])]
    cuts = np.unique(np.clip(edges[0], known_from_s, window_s, out=edges[0]))
    del edges
    start, end = cuts[:-1], cuts[1:]
    middle = (start + end) / 2
    away = _inside(absences.start_s, absences.end_s, middle)
    ready = np.asarray((away >= 0) & (middle >= wake[away] if len(wake) else False))
    preempted = ready & np.asarray(absences.state[away] == _RUNNABLE if len(wake) else False)
    starved = _inside(queue_start, queue_end, middle) >= 0
    inside = _Inside(away, ready, preempted, starved, *(_inside(each.start_s, each.end_s, middle) for each in scopes))
    kind = _own_kinds(inside, absences, files, file_kinds, device, device_kinds)
    idle = _waits_for_library(inside, kind, carried)
    waited_for = _positions(inside.collective, collective_ids)
    if carried is not None:
        called, coming = (
            _positions(*each)
            for each in ((inside.carried, carried.scopes.label), (inside.asleep, carried.asleep.label))
        )
        behind = np.where(called >= 0, called, coming)
        waited_for = np.where(idle & (behind >= 0), behind, waited_for)
    kind = _kinds(inside, kind, waited_for, idle, absences)
    return Timeline(
        start, end, kind, away, waited_for, _positions(inside.file, file_ids), _positions(inside.gc, gc_ids),
        _positions(inside.device, device_ids),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Inside:
    """For each piece of the window, the absence and the scopes that contain it, NONE where there is
    none.
    """

    away: Ints
    ready: Bools  # away, but awake: it waits for a CPU
    preempted: Bools  # ready since it last ran: not woken by anybody
    starved: Bools  # another thread of the process waits for a CPU
    collective: Ints
    file: Ints
    gc: Ints
    device: Ints
    carried: Ints
    asleep: Ints  # all threads of the process


def _own_kinds(
    inside: _Inside, absences: Absences, files: Scopes, file_kinds: Ints, device: Scopes, device_kinds: Ints | None
) -> Ints:
    """Classify each piece by the thread's own state, without collectives and run queue, lowest
    precedence first.
    """
    kind: Ints = np.where(inside.gc >= 0, GC, CPU).astype(np.int64)
    if len(absences.start_s):
        kind = np.where(inside.away >= 0, blocked_kinds(absences)[inside.away], kind)
    if len(files.label):
        kind = np.where(inside.file >= 0, file_kinds[files.label[inside.file]], kind)
    if device_kinds is not None and len(device.label):
        kind = np.where(inside.device >= 0, device_kinds[device.label[inside.device]], kind)
    return kind


def _waits_for_library(inside: _Inside, kind: Ints, carried: Carried | None) -> Bools:
    """Return a mask of pieces in which the thread only waits for a library's thread to compute or communicate."""
    idle = (kind == SYNC) & (inside.away >= 0) & (inside.collective < 0) & (inside.file < 0) & (inside.device < 0)
    found: Bools = idle & (carried.waiting[inside.away] if carried is not None and len(carried.waiting) else False)
    return found


def _kinds(inside: _Inside, kind: Ints, waited_for: Ints, idle: Bools, absences: Absences) -> Ints:
    """Apply the classes of higher precedence: collectives, the run queue, a stopped process."""
    kind = np.where(waited_for >= 0, COLLECTIVE, kind)
    kind = np.where(inside.starved & ((kind == COLLECTIVE) | idle), SCHED, kind)
    polled = inside.preempted & (inside.collective >= 0)
    kind = np.where(inside.ready & ~polled, SCHED, kind)
    if len(absences.start_s):
        stopped = absences.state[inside.away] & _STOPPED > 0
        kind = np.where((inside.away >= 0) & ~inside.ready & stopped, STOPPED, kind)
    return kind


def _none(count: int) -> Ints:
    """Return an array of NONE in the memory of one: a thread with a million absences has millions
    of pieces.
    """
    found: Ints = np.broadcast_to(np.int64(NONE), count)
    return found


def _positions(index: Ints, ids: Ints) -> Ints:
    """Convert indices among the outermost scopes to positions in the input (`ids`: position by index); NONE stays."""
    if not len(ids):
        return _none(len(index))
    return np.where(index >= 0, ids[np.maximum(index, 0)], NONE)


def _inside(starts: Floats, ends: Floats, times: Floats) -> Ints:
    """Return the index of the interval that contains each time, -1 for none. Intervals in order and
    disjoint.
    """
    if not len(starts):
        return _none(len(times))
    at = np.searchsorted(starts, times, side="right") - 1
    return np.where((at >= 0) & (times < ends[np.maximum(at, 0)]), at, NONE).astype(np.int64)


def union(scopes: Scopes) -> tuple[Floats, Floats]:
    """Return the times covered by at least one of the scopes, as disjoint intervals in order."""
    if not len(scopes.start_s):
        return scopes.start_s, scopes.end_s
    order = np.argsort(scopes.start_s)
    start, reach = scopes.start_s[order], np.maximum.accumulate(scopes.end_s[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def _outermost(scopes: Scopes) -> tuple[Scopes, Ints]:
    """Select the scopes that lie in no other, in order of begin; also return their positions in the input.

    A scope that begins inside another one is left out too.
    """
    if not len(scopes.start_s):
        return scopes, np.empty(0, dtype=np.int64)
    order = np.lexsort((-scopes.end_s, scopes.start_s))
    reach = np.maximum.accumulate(scopes.end_s[order])
    free = np.concatenate(([True], scopes.start_s[order][1:] >= reach[:-1]))
    kept = order[free]
    return Scopes(scopes.start_s[kept], scopes.end_s[kept], scopes.label[kept]), kept.astype(np.int64)


def blocked_kinds(absences: Absences) -> Ints:
    """Classify the blocked part of each absence by its system call."""
    syscall = absences.syscall
    kinds = np.full(len(syscall), SYNC, dtype=np.int64)
    kinds[np.isin(syscall, list(syscalls.FILE_CALLS)) & (absences.state & _UNINTERRUPTIBLE > 0)] = IO
    kinds[np.isin(syscall, list(syscalls.FILE_CALLS)) & ~np.isin(syscall, list(syscalls.SYNC_CALLS))] = IO
    kinds[np.isin(syscall, list(syscalls.SLEEP_CALLS))] = SLEEP
    # time.sleep before 3.11
    kinds[np.isin(syscall, list(syscalls.SELECT_CALLS)) & (absences.argument == 0)] = SLEEP
    kinds[(syscall == syscalls.NO_SYSCALL) & (absences.state & _UNINTERRUPTIBLE > 0)] = IO
    kinds[(syscall == syscalls.NO_SYSCALL) & (absences.state & _UNINTERRUPTIBLE == 0)] = SCHED
    return kinds
