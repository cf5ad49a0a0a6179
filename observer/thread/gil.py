"""Find which thread held the GIL while another waited for it, and in which function: pure, no I/O.

The kernel marks a wait for the GIL and reads from the lock itself whose thread state took it last
(probes/sched), so the thread is exact for each look, of which there is one every 5 ms. What that
thread was doing comes from its samples that fall into these waits or, where it held the GIL without
running, from its absences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rankscope.observer.thread.functions import Holder, StackName
from rankscope.observer.thread.samples import Samples
from rankscope.observer.thread.syscalls import GIL
from rankscope.observer.thread.timeline import Absences
from rankscope.probes.base.arrays import Floats

Leaf = tuple[str, str, int]


def held_by(
    waiting: Absences,
    stacks: Mapping[int, StackName],
    threads: Mapping[int, int],
    names: Mapping[int, str],
    track: Callable[[int], tuple[Samples, Absences]],
) -> dict[Leaf, Holder]:
    """Return, for each Python function in which this thread waited for the GIL, the main holder.

    `threads`: thread state -> tid; `names`: tid -> name of the thread; `track`: samples and
    absences of a thread.
    """
    waits: dict[Leaf, list[int]] = {}
    for index in np.flatnonzero(waiting.syscall == GIL).tolist():
        stack = stacks.get(int(waiting.stack[index]))
        waits.setdefault((stack.name, stack.file, stack.line) if stack else ("", "", 0), []).append(index)
    found: dict[Leaf, Holder] = {}
    tracks: dict[int, tuple[Samples, Absences]] = {}
    for function, mine in waits.items():
        holder = np.array([threads.get(int(argument), 0) for argument in waiting.argument[mine]])
        starts, ends = waiting.start_s[mine], (waiting.end_s - waiting.ready_s)[mine]
        known = np.unique(holder[holder != 0]).tolist()
        if not known:
            continue
        tid = max(known, key=lambda one: float((ends - starts)[holder == one].sum()))
        if tid not in tracks:
            tracks[tid] = track(tid)
        leaf = _leaf(*tracks[tid], starts[holder == tid], ends[holder == tid], stacks)
        found[function] = Holder(*(leaf or ("", "", 0)), names.get(tid, "another thread"))
    return found


def _leaf(
    samples: Samples, absences: Absences, starts: Floats, ends: Floats, stacks: Mapping[int, StackName]
) -> Leaf | None:
    """Return the function that a thread was in for most of these times; None if unknown.

    The times are in order and disjoint. Its samples decide; without any in these times, its
    absences.
    """
    weight: dict[Leaf, float] = {}
    if len(samples.time_s):
        at = np.searchsorted(starts, samples.time_s, side="right") - 1
        inside = (at >= 0) & (samples.time_s < ends[np.maximum(at, 0)])
        for identity, count in zip(*np.unique(samples.stack[inside], return_counts=True), strict=True):
            _add(weight, stacks.get(int(identity)), float(count))
    if not weight:
        away = absences.syscall != GIL
        overlap_s = _waited_until(absences.end_s[away], starts, ends) - _waited_until(
            absences.start_s[away], starts, ends
        )
        distinct, first, which = np.unique(absences.stack[away], return_index=True, return_inverse=True)
        seconds = np.bincount(which, overlap_s, len(distinct))
        for at in np.argsort(first).tolist():
            _add(weight, stacks.get(int(distinct[at])), float(seconds[at]))
    return max(weight, key=lambda leaf: weight[leaf], default=None)


def _waited_until(time_s: Floats, starts: Floats, ends: Floats) -> Floats:
    """Return how many seconds of the waits `starts` … `ends` lie before each of these times."""
    edges = np.maximum.accumulate(np.stack((starts, ends), axis=1).reshape(-1))
    waited = np.cumsum(np.diff(edges, prepend=edges[:1]) * (np.arange(len(edges)) % 2))
    return np.interp(time_s, edges, waited)


def _add(weight: dict[Leaf, float], stack: StackName | None, much: float) -> None:
    """Add `much` to the weight of the stack's leaf function; do nothing for an unknown stack, or 0."""
    if stack is not None and stack.name and much > 0:
        leaf = (stack.name, stack.file, stack.line)
        weight[leaf] = weight.get(leaf, 0.0) + much
