"""Index a window's events and calls by process: sorted once, then found by pid. Pure.

A window holds 1.5 million events of up to some thousands of processes. Filtering all of them for
one process takes 20 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rankscope.probes.base.grouped import grouped
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.probe import OpenCall
from rankscope.probes.sched.probe import ThreadTimes


@dataclass(frozen=True, slots=True)
class EventsByProcess:
    """Read-only events, sorted by process."""

    _events: Events
    _edges: Mapping[int, tuple[int, int]]
    _until_ns: int | None = None

    def of(self, pid: int) -> Events:
        """Return the events of a process in their original order: a view, after `until` a copy; empty if none."""
        mine: Events = self._events[slice(*self._edges.get(pid, (0, 0)))]
        if self._until_ns is None:
            return mine
        kept: Events = mine[(mine["ts_ns"] < self._until_ns) | (mine["type"] == ring.EXIT)]
        return kept

    def until(self, end_ns: int) -> EventsByProcess:
        """Restrict to events that began before `end_ns`, and to ends of processes."""
        return replace(self, _until_ns=end_ns)


def events_by_process(batches: list[Events], start_ns: int, end_ns: int) -> EventsByProcess:
    """Index the events that overlap the window, and all ends of processes, including those before
    it.

    `batches` is emptied, so that the events are in memory twice only briefly.
    """
    events = np.concatenate([np.empty(0, ring.EVENT), *batches])
    batches.clear()
    began = (events["ts_ns"] + events["dur_ns"] > start_ns) | (events["type"] == ring.EXIT)
    kept = np.flatnonzero(began & (events["ts_ns"] < end_ns))
    processes = grouped(events["tgid"][kept])
    found: Events = events[kept[processes.order]]
    found.flags.writeable = False
    return EventsByProcess(found, processes.edges)


def calls_by_process(
    calls: Iterable[OpenCall], threads: Mapping[int, ThreadTimes]
) -> dict[int, list[tuple[int, int, int]]]:
    """Index calls in progress by the process of their thread: (tid, row of the table, start in ns)."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for call in calls:
        times = threads.get(call.tid)
        if times is not None:
            found.setdefault(times.tgid, []).append((call.tid, call.row, call.since_ns))
    return found
