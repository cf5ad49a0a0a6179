"""Find the thread of a rank that trains: the one whose calls mark the steps. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.thread.device_calls import of_roles
from rankscope.probes.base.arrays import Bools, Ints
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.row import BACKWARD, DISPATCH, GPU_WAIT, WAIT, CallRow

_OWN = (
    WAIT,
    BACKWARD,
    DISPATCH,
    GPU_WAIT,
)  # calls that a training thread makes itself; collectives may be run by a library's threads


def training_thread(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> int:
    """Return the tid of the training thread: the first of `training_threads`, if there is any.

    Else the only Python thread inside such a call at the window's end; else the main thread.
    """
    found = training_threads(raw, calls, table)
    if found:
        return found[0]
    inside = [tid for tid, row, _ in raw.open_calls if table[row].role in _OWN and tid in raw.python_tids]
    return inside[0] if len(set(inside)) == 1 else raw.pid


def training_threads(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> tuple[int, ...]:
    """List the tids of the Python threads that train, the one that does most first; empty if none makes calls.

    Those that run backward passes, by time; where none does, those that wait for collectives and
    the GPU or dispatch work, by number of calls; else those that make any call. A pass inside
    another thread's pass is a part of that: where activations are recomputed, autograd's thread of
    a GPU makes one for each layer.
    """
    passes = calls[of_roles(calls, table, BACKWARD)]
    passes = passes[np.isin(passes["tid"], list(raw.python_tids))]
    outer = passes[~_inside_another(passes)]
    if len(outer):
        return _most(outer, by_time=True)
    for chosen in (calls[of_roles(calls, table, *_OWN)], calls):
        mine = chosen[np.isin(chosen["tid"], list(raw.python_tids))]
        if len(mine):
            return _most(mine)
    return ()


def strangers(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> Events:
    """Return the training calls of threads that are not known to be Python's, as each ended too early.

    A job may start a new thread for each step. Autograd's own thread of a GPU is excluded: its
    passes lie inside another thread's.
    """
    own = calls[of_roles(calls, table, *_OWN)]
    known = np.isin(own["tid"], list(raw.python_tids))
    passes = of_roles(own, table, BACKWARD)
    nested = np.unique(own["tid"][passes & ~known][_inside(own[passes & ~known], own[passes & known])])
    found: Events = own[~known & ~np.isin(own["tid"], nested)]
    return found


def who_trains(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> tuple[tuple[int, ...], Events]:
    """Return the training threads (tids), and the training calls of unknown threads (`strangers`), consistently.

    Where strangers make most such calls, other training threads are strangers that happened to be
    listed in time: their calls are returned too; then only the main thread counts.
    """
    own, unknown = training_threads(raw, calls, table), strangers(raw, calls, table)
    theirs = calls[of_roles(calls, table, *_OWN) & np.isin(calls["tid"], [tid for tid in own if tid != raw.pid])]
    if len(unknown) <= len(theirs):
        return own, unknown
    joined = np.concatenate((unknown, theirs))
    return (raw.pid,) if raw.pid in own else (), joined[np.argsort(joined["ts_ns"], kind="stable")]


def _most(calls: Events, by_time: bool = False) -> tuple[int, ...]:
    """Return the threads of these calls, by number of calls or time, descending."""
    tids, place = np.unique(calls["tid"], return_inverse=True)
    weight = np.bincount(place.reshape(-1), calls["dur_ns"].astype(np.float64) if by_time else None)
    return tuple(tids[np.argsort(-weight, kind="stable")].tolist())


def _inside_another(passes: Events) -> Bools:
    """Tell which calls lie inside a call of another thread. One pass, as a job may have any number
    of threads.
    """
    (begin, end), tids = _span(passes), passes["tid"]
    order = np.argsort(begin, kind="stable")
    found = np.zeros(len(passes), dtype=bool)
    latest, whose, of_another = (
        -1,
        -1,
        -1,
    )  # of what began so far: the latest end, its thread, the latest end of any other thread
    calls = zip(order.tolist(), begin[order].tolist(), end[order].tolist(), tids[order].tolist(), strict=True)
    for _, together in itertools.groupby(calls, key=lambda call: call[1]):
        began = list(together)
        for _, _, until, tid in began:
            if tid == whose:
                latest = max(latest, until)
            elif until > latest:
                latest, whose, of_another = until, tid, latest
            else:
                of_another = max(of_another, until)
        for at, _, until, tid in began:
            found[at] = until <= (of_another if tid == whose else latest)
    return found


def _inside(calls: Events, others: Events) -> Bools:
    """Tell which of these calls lie inside one of the others."""
    if not len(others):
        return np.zeros(len(calls), dtype=bool)
    (begin, end), (starts, ends) = _span(calls), _span(others[np.argsort(others["ts_ns"], kind="stable")])
    before = np.searchsorted(starts, begin, side="right") - 1
    inside: Bools = (before >= 0) & (end <= np.maximum.accumulate(ends)[np.maximum(before, 0)])
    return inside


def _span(calls: Events) -> tuple[Ints, Ints]:
    """Return begin and end of each call, in ns of CLOCK_MONOTONIC."""
    begin = calls["ts_ns"].astype(np.int64)
    return begin, begin + calls["dur_ns"].astype(np.int64)
