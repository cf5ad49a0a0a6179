"""Find threads of a process that take turns, and which one has the turn when. Pure.

Steps may run in threads of a pool, in turn, or in one thread that works for another: each continues
where the other stopped, and together they are one line of time. Known of each thread are its times
off the CPU, and which thread woke it:

rests     blocked until another Python thread of its process wakes it (a future, a queue, a join, an event loop), as nearly all waits at
          this call site end; not inside a timed call of a library, where it waits for the library's work
quiet     rests, or waits for the GIL directly after
works     is not quiet: runs, could run, or waits for something else (a collective, a file, the GIL)

Independent threads work at the same time now and then: the share of the window in which both do is
the product of their shares. Threads that take turns do not: those that work together for less than
half of that count as taking turns (`in_turn`). That suffices for threads whose calls mark steps;
another thread must also have woken them or been woken by them, and where several such threads work
in parallel (a pool that loads samples) none of them takes turns.

The turn belongs to a running thread, of several to the last to begin; if none runs, to one that
does not rest; if all rest, to the last one that ran.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.observer.steps.found import MIN_REPEATS
from rankscope.observer.thread.timeline import Scopes, union
from rankscope.probes.base.arrays import Bools, Floats, Ints

_BLOCK = 1 << 17
_CHANCE = 0.5  # halfway from chance to nothing
_UNKNOWN, _RESTS, _WORKS, _RUNS = range(4)


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint stretches of time in order, in seconds since the window's start."""

    start_s: Floats
    end_s: Floats

    @property
    def seconds(self) -> float:
        return float((self.end_s - self.start_s).sum())

    def together_s(self, other: Spans) -> float:
        """Return the seconds that lie in both."""
        if not len(self.start_s) or not len(other.start_s):
            return 0.0
        edges = np.stack((other.start_s, other.end_s), axis=1).reshape(-1)
        lengths = np.stack((np.zeros(len(other.start_s)), other.end_s - other.start_s), axis=1).reshape(-1)
        passed = np.cumsum(lengths)
        return float((np.interp(self.end_s, edges, passed) - np.interp(self.start_s, edges, passed)).sum())


@dataclass(frozen=True, slots=True)
class ThreadEdges:
    """One thread's times off the CPU, in order, and its first and last event.

    `wake_s`: when it could run again; `waker`: the thread that woke it, 0 for none, -1 for not yet.
    """

    tid: int
    start_s: Floats
    wake_s: Floats
    end_s: Floats
    rests: Bools
    quiet: Bools
    waker: Ints
    since_s: float
    until_s: float

    def works(self) -> Spans:
        """Return the stretches within the window in which the thread works, that is, is not quiet."""
        start = np.concatenate(([self.since_s], self.end_s[self.quiet]))
        end = np.concatenate((self.start_s[self.quiet], [self.until_s]))
        start, end = np.clip(start, max(self.since_s, 0.0), None), np.clip(end, None, self.until_s)
        kept = end > start
        return Spans(start[kept], end[kept])


@dataclass(frozen=True, slots=True)
class Pieces:
    """Which thread had the turn when: disjoint pieces in order, without gaps, with the `tid` of each."""

    start_s: Floats
    end_s: Floats
    tid: Ints

    def of(self, tid: int) -> Spans:
        """Return the stretches in which this thread had the turn."""
        mine = self.tid == tid
        return Spans(self.start_s[mine], self.end_s[mine])


def together(spans: Sequence[Spans]) -> Spans:
    """Return the union of these stretches, disjoint and in order."""
    start = np.concatenate([one.start_s for one in spans]) if spans else np.empty(0)
    end = np.concatenate([one.end_s for one in spans]) if spans else np.empty(0)
    return Spans(*union(Scopes(start, end, np.arange(len(start)))))


def in_turn(one: Spans, other: Spans, window_s: float) -> bool:
    """Tell whether two threads take turns, given when each works.

    They do if they work at the same time for less than half of the time expected by chance.
    """
    return one.together_s(other) * window_s < _CHANCE * one.seconds * other.seconds


def taking_turns(
    threads: Sequence[ThreadEdges], training: Sequence[int], strangers: Spans, window_s: float
) -> tuple[int, ...]:
    """Return the tids of the training thread, which comes first, and of the threads that take turns with it.

    `training`: tids whose calls mark steps, by number of calls; () where none of them is in
    `threads`. `strangers`: times of such calls by threads of which nothing else is known.
    """
    works = {one.tid: one.works() for one in threads}
    ours = [tid for tid in training if tid in works]
    if not ours:
        return ()
    first = ours[0]
    chosen = [tid for tid in ours if tid == first or in_turn(works[tid], works[first], window_s)]
    chosen = _without_intruders(works, chosen, window_s)
    group = together([*(works[tid] for tid in chosen), *([strangers] if len(strangers.start_s) else [])])
    woken = _woken_by(threads)
    others = [
        tid
        for tid, spans in works.items()
        if tid not in ours and spans.seconds > 0 and in_turn(spans, group, window_s)
        and sum(woken.get((tid, one), 0) + woken.get((one, tid), 0) for one in chosen) >= MIN_REPEATS
    ]  # fmt: skip
    alone = [tid for tid in others if all(tid == one or in_turn(works[tid], works[one], window_s) for one in others)]
    return (*chosen, *alone)


def _without_intruders(works: Mapping[int, Spans], chosen: Sequence[int], window_s: float) -> list[int]:
    """Return `chosen` (tids) without threads that do not take turns with all others together; the first one stays.

    `works`: by tid, when each works. A thread that rarely has a turn seems to take turns with
    everybody. Cost: as many passes over all edges as threads are dropped, since the job decides how
    many threads there are.
    """
    left = list(chosen)
    crowd = _Crowd([works[tid] for tid in left]) if len(left) > 2 else None
    while crowd and len(left) > 2:
        shared_s, rest_s = crowd.beside(works[tid] for tid in left)
        excess = shared_s * window_s - _CHANCE * np.array([works[tid].seconds for tid in left]) * rest_s
        excess[0] = -1.0
        if not (excess >= 0).any():
            break
        gone = left.pop(int(np.argmax(np.where(excess >= 0, shared_s, -1.0))))
        crowd.without(works[gone])
    return left


class _Crowd:
    """The number of threads that work at each time."""

    def __init__(self, spans: Sequence[Spans]) -> None:
        self._cuts = np.unique(np.concatenate([edges for one in spans for edges in (one.start_s, one.end_s)]))
        self._lengths = np.diff(self._cuts)
        self._working = sum((self._at(one) for one in spans), np.zeros(len(self._lengths), dtype=np.int64))

    def without(self, spans: Spans) -> None:
        """Remove one of the threads."""
        self._working -= self._at(spans)

    def beside(self, spans: Iterable[Spans]) -> tuple[Floats, Floats]:
        """Return for each thread the seconds in which it and another work, and the seconds in which
        any other works.
        """
        several, one = (_sums(self._lengths * chosen) for chosen in (self._working > 1, self._working == 1))
        found = [(self._within(several, each), self._within(one, each)) for each in spans]
        shared_s, alone_s = np.array(found).reshape(-1, 2).T
        return shared_s, several[-1] + one[-1] - alone_s

    def _at(self, spans: Spans) -> Ints:
        """Mark with 1 each interval between cuts in which it works."""
        size = len(self._cuts)
        begins, ends = (
            np.bincount(np.searchsorted(self._cuts, each), minlength=size) for each in (spans.start_s, spans.end_s)
        )
        found: Ints = np.cumsum(begins - ends)[:-1]
        return found

    def _within(self, passed: Floats, spans: Spans) -> float:
        """Return the sum inside these spans of a quantity whose cumulative sums at the cuts are `passed`."""
        first, last = (np.searchsorted(self._cuts, each) for each in (spans.start_s, spans.end_s))
        return float((passed[last] - passed[first]).sum())


def _sums(values: Floats) -> Floats:
    """Return the cumulative sums, beginning with 0: one element more than `values`."""
    return np.concatenate(([0.0], np.cumsum(values)))


def _woken_by(threads: Sequence[ThreadEdges]) -> dict[tuple[int, int], int]:
    """Count how often each thread was woken from a rest by which: {(resting tid, waking tid): times}."""
    found: dict[tuple[int, int], int] = {}
    for one in threads:
        wakers, counts = np.unique(one.waker[one.rests], return_counts=True)
        found.update({(one.tid, waker): count for waker, count in zip(wakers.tolist(), counts.tolist(), strict=True)})
    return found


def pieces(threads: Collection[ThreadEdges], window_s: float) -> Pieces:
    """Determine which thread had the turn when, from the first event of these threads to the end of the window."""
    edges = [edge for one in threads for edge in (one.start_s, one.wake_s, one.end_s)]
    ends = [end for one in threads for end in (one.since_s, one.until_s)]
    cuts = np.unique(np.minimum(np.concatenate([*edges, ends, [window_s]]), window_s))
    middle = (cuts[:-1] + cuts[1:]) / 2
    # In blocks: a million absences have three million edges, and each thread is evaluated at all of
    # them.
    blocks = [_owners(threads, middle[at : at + _BLOCK]) for at in range(0, len(middle), _BLOCK)]
    owner = np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int64)
    first = np.concatenate(([True], owner[1:] != owner[:-1])) if len(owner) else np.zeros(0, dtype=bool)
    last = np.concatenate((first[1:], [True])) if len(owner) else first
    return Pieces(cuts[:-1][first], cuts[1:][last], owner[first])


def _owners(threads: Collection[ThreadEdges], time_s: Floats) -> Ints:
    """Return the tid of the thread that has the turn at each of these times (s)."""
    state = np.full(len(time_s), -1, dtype=np.int64)
    since = np.full(len(time_s), -np.inf)
    owner = np.zeros(len(time_s), dtype=np.int64)
    for one in threads:
        its_state, its_since = _state(one, time_s)
        better = (its_state > state) | ((its_state == state) & (its_since > since))
        state, since, owner = (
            np.where(better, its_state, state),
            np.where(better, its_since, since),
            np.where(better, one.tid, owner),
        )
    return owner


def _state(one: ThreadEdges, time_s: Floats) -> tuple[Ints, Floats]:
    """Return the thread's state (`_UNKNOWN` … `_RUNS`) at each time, and since when (s) it has been in it.

    A rest ends when the thread is woken, though it does not run yet. Before its first absence it is
    in its state since its first event. The second array has no meaning for `_UNKNOWN`.
    """
    known = (time_s >= one.since_s) & (time_s < one.until_s)
    if not len(one.start_s):
        return np.where(known, _RUNS, _UNKNOWN), np.full(len(time_s), one.since_s)
    at = np.searchsorted(one.start_s, time_s, side="right") - 1
    before = np.maximum(at, 0)
    away = (at >= 0) & (time_s < one.end_s[before])
    asleep = one.rests[before] & (time_s < one.wake_s[before])
    ran_s = np.where(one.rests[before] & ~asleep, one.wake_s[before], one.start_s[before])
    state = np.where(away, np.where(asleep, _RESTS, _WORKS), _RUNS)
    began_s = np.where(at >= 0, one.end_s[before], one.since_s)
    return np.where(known, state, _UNKNOWN), np.where(away, ran_s, began_s)
