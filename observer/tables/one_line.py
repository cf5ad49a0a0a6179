"""Merge threads of a process that take turns into one training thread. Pure.

In: all data of one process. Out: the same, where the threads of `taking_turns` are one thread,
under the number of the main thread if that is one of them. While another thread has the turn, a
thread's rest is left out; so measurements of one thread apply unchanged to the merged one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rankscope.observer.tables.raw import OpenAbsence, RawProcess
from rankscope.observer.tables.training_thread import who_trains
from rankscope.observer.tables.turns import Pieces, Spans, ThreadEdges, in_turn, pieces, taking_turns, together
from rankscope.observer.thread import syscalls
from rankscope.observer.thread.device_calls import of_roles
from rankscope.probes.base.arrays import Bools, Ints
from rankscope.probes.base.grouped import grouped
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.row import HOST_ROLES, SCOPED, CallRow
from rankscope.probes.sched.probe import WAKER_SHIFT

_GIL_GAP_S = 0.001  # as in thread/waits.py: between two looks at the GIL that belong to one wait
_MOST = 0.5
# Waits that another thread may end: locks, and what an event loop waits in.
_HANDED_OVER = frozenset(syscalls.THREAD_CALLS) | {
    number for number, what in syscalls.SYNC_CALLS.items() if what in ("poll", "select", "epoll")
}
_STATE = (1 << WAKER_SHIFT) - 1


def merge_turns(raw: RawProcess, table: Sequence[CallRow]) -> RawProcess:
    """Merge the threads of a process that take turns (`RawProcess.members`); unchanged where none
    do.
    """
    calls = raw.events[raw.events["type"] == ring.CALL]
    own, unknown = who_trains(raw, calls, table)
    if len(own) + len(np.unique(unknown["tid"])) == 0:
        return raw
    threads = _threads(raw, calls, table, frozenset(np.unique(unknown["tid"]).tolist()))
    spans = _spans(raw, unknown)
    members = taking_turns(threads, own or (raw.pid,), spans, raw.window_s)
    chosen = [one for one in threads if one.tid in members]
    if not in_turn(spans, together([one.works() for one in chosen]), raw.window_s):
        unknown = unknown[:0]
    if len(members) < 2 and not len(unknown):
        return raw
    return _merged(raw, chosen, pieces(chosen, raw.window_s), unknown)


def _spans(raw: RawProcess, calls: Events) -> Spans:
    """Return the times covered by at least one of these calls."""
    start = raw.since_start_s(calls["ts_ns"])
    return together([Spans(start, start + calls["dur_ns"] / 1e9)])


def _threads(raw: RawProcess, calls: Events, table: Sequence[CallRow], unknown: frozenset[int]) -> list[ThreadEdges]:
    """Return the absences and first and last event of each Python thread that has events.

    `calls`: library calls of all threads. `unknown`: tids of further threads that can have woken
    one of them.
    """
    python = np.array(sorted(raw.python_tids | unknown))
    timed = calls[of_roles(calls, table, *(role for role in (*HOST_ROLES, *SCOPED) if role != "gc"))]
    tids = np.unique(raw.events["tid"][np.isin(raw.events["tid"], list(raw.python_tids))])
    calls_of = grouped(timed["tid"])
    return [_edges(raw, tid, raw.of_thread(tid), timed[calls_of.rows(tid)], python) for tid in tids.tolist()]


def _edges(raw: RawProcess, tid: int, mine: Events, timed: Events, python: Ints) -> ThreadEdges:
    """Determine when a thread was off the CPU, which of these times are rests or quiet, and which thread ended them.

    `mine`: its events; `timed`: its library calls, in which no absence is a rest; `python`: tids of
    the threads that can wake it from a rest.
    """
    away = mine[mine["type"] == ring.OFFCPU]
    away = away[np.argsort(away["ts_ns"], kind="stable")]
    start = raw.since_start_s(away["ts_ns"])
    end = start + away["dur_ns"] / 1e9
    wake = end - away["ready_ns"] / 1e9
    state, waker = away["aux"].astype(np.int64) & _STATE, away["aux"].astype(np.int64) >> WAKER_SHIFT
    call, stack = away["what"].astype(np.int64), away["stack"]
    still = raw.open_absences.get(tid)
    if still is not None and (still.since_ns - raw.start_ns) / 1e9 < raw.window_s:
        start, end = np.append(start, (still.since_ns - raw.start_ns) / 1e9), np.append(end, raw.window_s)
        wake = np.append(wake, (still.wake_ns - raw.start_ns) / 1e9 if still.wake_ns else raw.window_s)
        state, waker = np.append(state, still.state), np.append(waker, -1)
        call, stack = np.append(call, still.syscall), np.append(stack, np.uint64(still.stack))
    may = (state != 0) & np.isin(call, list(_HANDED_OVER)) & ~_inside(_spans(raw, timed), start)
    by_thread = np.isin(waker, python) & (waker != tid)
    rests = may & _mostly(by_thread, may & (waker >= 0), stack)
    ends = raw.since_start_s(mine["ts_ns"]) + mine["dur_ns"] / 1e9
    heard = float(raw.since_start_s(mine["ts_ns"]).min())
    # A thread that ended no longer works: it would have been sampled, or have gone to sleep.
    until = raw.window_s if tid in raw.alive_tids or still is not None else float(ends.max()) + 1 / raw.hz
    quiet = rests | _gil_after(rests, call, start, end)
    return ThreadEdges(tid, start, wake, end, rests, quiet, waker, heard, min(until, raw.window_s))


def _inside(spans: Spans, time_s: npt.NDArray[np.float64]) -> Bools:
    """Return for each time whether it lies in one of the spans."""
    at = np.searchsorted(spans.start_s, time_s, side="right") - 1
    if not len(spans.start_s):
        return np.zeros(len(time_s), dtype=bool)
    inside: Bools = (at >= 0) & (time_s < spans.end_s[np.maximum(at, 0)])
    return inside


def _mostly(ended: Bools, told: Bools, stack: npt.NDArray[np.uint64]) -> Bools:
    """Tell for each wait whether most waits with its stack ended as marked in `ended`.

    Only waits whose waker is known (`told`) count.
    """
    if not len(stack):
        return ended
    _, which = np.unique(stack, return_inverse=True)
    which = which.reshape(-1)
    known = np.bincount(which, told)
    share = np.bincount(which, ended & told) / np.maximum(known, 1)
    found: Bools = np.where(stack == 0, ended, (share >= _MOST)[which])
    return found


def _gil_after(rests: Bools, call: Ints, start_s: npt.NDArray[np.float64], end_s: npt.NDArray[np.float64]) -> Bools:
    """Mark the waits for the GIL that directly follow a rest, or each other."""
    found = np.zeros(len(rests), dtype=bool)
    follows = np.zeros(len(rests), dtype=bool)
    follows[1:] = (call[1:] == syscalls.GIL) & (start_s[1:] - end_s[:-1] < _GIL_GAP_S)
    for at in np.flatnonzero(follows).tolist():
        found[at] = rests[at - 1] or found[at - 1]
    return found


def _merged(raw: RawProcess, threads: Sequence[ThreadEdges], had: Pieces, unknown: Events) -> RawProcess:
    """Move the events of these threads into one thread, each thread's within its turns (`had`).

    `unknown`: calls of threads of which nothing else is known, added to it.
    """
    members = tuple(one.tid for one in threads)
    line = raw.pid if raw.pid in members else max(members, key=lambda tid: had.of(tid).seconds)
    events = raw.events
    theirs = np.isin(events["tid"], members)
    strange = np.isin(events["tid"], unknown["tid"]) & (events["type"] == ring.CALL)
    parts = [events[~theirs & ~strange], events[strange]]
    for one in threads:
        parts += _in_its_turn(raw, raw.of_thread(one.tid), had.of(one.tid))
    for part in parts[1:]:
        part["tid"] = line
    merged = np.concatenate(parts)
    return replace(
        raw,
        events=merged[np.argsort(merged["ts_ns"], kind="stable")],
        open_absences=_last_absence(raw, members, line, had),
        open_calls=[(line if tid in members else tid, row, since) for tid, row, since in raw.open_calls],
        python_tids=(raw.python_tids - frozenset(members)) | {line},
        thread_states={state: line if tid in members else tid for state, tid in raw.thread_states.items()},
        targets=_targets(raw, members, line),
        members=members,
    )


def _in_its_turn(raw: RawProcess, mine: Events, had: Spans) -> list[Events]:
    """Select a thread's events within `had`, the stretches in which it has the turn: [other events, absences].

    Absences are cut to them, samples outside are dropped, calls are unchanged.
    """
    away = mine["type"] == ring.OFFCPU
    sampled = mine["type"] == ring.SAMPLE
    kept = ~away & (~sampled | _inside(had, raw.since_start_s(mine["ts_ns"])))
    return [mine[kept], _cut(raw, mine[away], had)]


def _cut(raw: RawProcess, away: Events, had: Spans) -> Events:
    """Cut absences to the stretches `had`, one part for each stretch that they touch.

    Of each part the time in which the thread was ready to run is computed anew.
    """
    if not len(away) or not len(had.start_s):
        return away[:0]
    start, end = away["ts_ns"].astype(np.int64), (away["ts_ns"] + away["dur_ns"]).astype(np.int64)
    wake = end - away["ready_ns"].astype(np.int64)
    begins, ends = (raw.start_ns + np.rint(each * 1e9).astype(np.int64) for each in (had.start_s, had.end_s))
    first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(begins, end, side="left")
    often = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(away)), often)
    piece = first[which] + np.arange(len(which)) - np.repeat(np.cumsum(often) - often, often)
    since, until = np.maximum(start[which], begins[piece]), np.minimum(end[which], ends[piece])
    found = away[which]
    found["ts_ns"], found["dur_ns"] = since, until - since
    found["ready_ns"] = np.maximum(until - np.maximum(wake[which], since), 0)
    return found


def _last_absence(raw: RawProcess, members: Sequence[int], line: int, had: Pieces) -> Mapping[int, OpenAbsence]:
    """Return the absences at the window's end by tid; for the merged thread `line` that of the member with the turn."""
    others = {tid: away for tid, away in raw.open_absences.items() if tid not in members}
    holder = int(had.tid[-1]) if len(had.tid) else line
    away = raw.open_absences.get(holder)
    if away is None:
        return others
    # Time before the first piece is unknown; a thread that took over was off the CPU for the merged
    # line only from then.
    since_ns = away.since_ns
    if len(had.tid) > 1:
        since_ns = max(since_ns, raw.start_ns + round(float(had.start_s[-1]) * 1e9))
    return {**others, line: replace(away, tid=line, since_ns=since_ns)}


def _targets(raw: RawProcess, members: Sequence[int], line: int) -> dict[tuple[int, int, int], str]:
    """Return the wait targets with the members' tids replaced by that of the merged thread, `line`."""
    return {
        (line if tid in members else tid, call, argument): target
        for (tid, call, argument), target in raw.targets.items()
    }
