"""Which thread of a rank trains: the one from whose calls the steps are told. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.thread.device_calls import of_roles
from rankscope.probes.arrays import Bools, Ints
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.row import BACKWARD, DISPATCH, GPU_WAIT, WAIT, CallRow

_OWN = (
    WAIT,
    BACKWARD,
    DISPATCH,
    GPU_WAIT,
)  # what a training thread does itself; collectives may be carried by a library's threads


def training_thread(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> int:
    """The first of `training_threads`; else the one that is inside such a call at the end; else the main thread."""
    found = training_threads(raw, calls, table)
    if found:
        return found[0]
    inside = [tid for tid, row, _ in raw.open_calls if table[row].role in _OWN and tid in raw.python_tids]
    return inside[0] if len(set(inside)) == 1 else raw.pid


def training_threads(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> tuple[int, ...]:
    """Python threads that run backward passes, who does so for most of the time first; where none does, those that wait for collectives
    and the GPU or hand work over, who does so most often first; else those that make any call.

    A pass inside another thread's pass is a part of that: where activations are computed anew, autograd's thread of a GPU makes one for
    each layer.
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
    """Calls as a training thread makes them, of threads that were gone before they were known to be Python's: a thread for each step.

    Autograd's own thread of a GPU is none: its passes lie inside another thread's.
    """
    own = calls[of_roles(calls, table, *_OWN)]
    known = np.isin(own["tid"], list(raw.python_tids))
    passes = of_roles(own, table, BACKWARD)
    nested = np.unique(own["tid"][passes & ~known][_inside(own[passes & ~known], own[passes & known])])
    found: Events = own[~known & ~np.isin(own["tid"], nested)]
    return found


def who_trains(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> tuple[tuple[int, ...], Events]:
    """`training_threads` and the calls of `strangers`. Where strangers make most such calls, whoever of their kind was still there
    by chance when Python's threads were asked for is one of them, and nobody trains but for the main thread."""
    own, unknown = training_threads(raw, calls, table), strangers(raw, calls, table)
    theirs = calls[of_roles(calls, table, *_OWN) & np.isin(calls["tid"], [tid for tid in own if tid != raw.pid])]
    if len(unknown) <= len(theirs):
        return own, unknown
    joined = np.concatenate((unknown, theirs))
    return (raw.pid,) if raw.pid in own else (), joined[np.argsort(joined["ts_ns"], kind="stable")]


def _most(calls: Events, by_time: bool = False) -> tuple[int, ...]:
    """The threads of these calls, who makes most of them first."""
    tids, place = np.unique(calls["tid"], return_inverse=True)
    weight = np.bincount(place.reshape(-1), calls["dur_ns"].astype(np.float64) if by_time else None)
    return tuple(tids[np.argsort(-weight, kind="stable")].tolist())


def _inside_another(passes: Events) -> Bools:
    """Which of these calls lie inside one of another thread. In one pass: how many threads there are says the job."""
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
    """Which of these calls lie inside one of the others."""
    if not len(others):
        return np.zeros(len(calls), dtype=bool)
    (begin, end), (starts, ends) = _span(calls), _span(others[np.argsort(others["ts_ns"], kind="stable")])
    before = np.searchsorted(starts, begin, side="right") - 1
    inside: Bools = (before >= 0) & (end <= np.maximum.accumulate(ends)[np.maximum(before, 0)])
    return inside


def _span(calls: Events) -> tuple[Ints, Ints]:
    begin = calls["ts_ns"].astype(np.int64)
    return begin, begin + calls["dur_ns"].astype(np.int64)
