"""Interpret a rank's calls into its accelerator's libraries for its timeline. Pure.

gpu-wait    waits for the GPU; so does freeing GPU memory, and a copy that lasts much longer than its bytes need, because
            it first waits for the kernels before it
memory      a copy that blocks the thread
enqueue     a collective put on a stream: its bytes and its name; when it runs is known from the GPU's own series only
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.observer.thread import timeline
from rankscope.observer.thread.functions import FunctionKey
from rankscope.observer.thread.timeline import Scopes
from rankscope.probes.base.arrays import Bools, Floats, Ints
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls import collectives
from rankscope.probes.calls import copies as cuda
from rankscope.probes.calls.row import ALLOCATE, BACKWARD, COLLECTIVE, ENQUEUE, GPU_WAIT, MEMORY, WAIT, CallRow

EXCHANGE_ROLES = (COLLECTIVE, WAIT, ENQUEUE)
# Calls that repeat with the steps.
MARKER_ROLES = (*EXCHANGE_ROLES, BACKWARD, GPU_WAIT)
_SCOPE_ROLES = (GPU_WAIT, MEMORY, ALLOCATE)
_SLOWEST_COPY_HZ, _COPY_OVERHEAD_S = 0.5e9, 0.002


@dataclass(frozen=True, slots=True)
class DeviceCalls:
    """Waits for the GPU and copies of one thread, as input of timeline.build.

    `scopes`: begin and end of each, labelled by its index in the other fields: its class, name and
    bytes.
    """

    scopes: Scopes
    kinds: Ints
    functions: list[FunctionKey]
    bytes: Ints


def of_roles(calls: Events, table: Sequence[CallRow], *roles: str) -> Bools:
    """Return a mask of the calls whose row in `table` has one of these roles."""
    chosen: Bools = np.array([row.role in roles for row in table])[calls["what"]]
    return chosen


def device_calls(
    calls: Events,
    table: Sequence[CallRow],
    start_ns: int,
    window_s: float,
    still: Iterable[tuple[int, int]] = (),
) -> DeviceCalls:
    """Build scopes from the calls of one thread; `still`: (row, since ns) of calls in progress at
    the end.
    """
    mine = calls[of_roles(calls, table, *_SCOPE_ROLES)]
    rows, moved, direction = mine["what"].astype(np.int64), np.maximum(mine["arg"], 0), mine["aux"].astype(np.int64)
    start: Floats = (mine["ts_ns"].astype(np.float64) - start_ns) / 1e9
    end: Floats = start + mine["dur_ns"] / 1e9
    for row, since_ns in still:
        if table[row].role in _SCOPE_ROLES:
            rows, moved, direction = np.append(rows, row), np.append(moved, 0), np.append(direction, -1)
            start, end = np.append(start, max((since_ns - start_ns) / 1e9, 0.0)), np.append(end, window_s)
    copies = np.array([table[row].role == MEMORY for row in rows], dtype=bool)
    copies &= end - start <= _COPY_OVERHEAD_S + moved / _SLOWEST_COPY_HZ
    functions = [
        _copy(table[row], towards) if is_copy else _wait(table[row])
        for row, towards, is_copy in zip(rows.tolist(), direction.tolist(), copies.tolist(), strict=True)
    ]
    kinds = np.where(copies, timeline.COPY, timeline.GPU_WAIT).astype(np.int64)
    return DeviceCalls(Scopes(start, end, np.arange(len(start))), kinds, functions, np.where(copies, moved, 0))


def _wait(row: CallRow) -> FunctionKey:
    """Return the key of a call that waits for the GPU, or of one that allocates or frees its memory."""
    return FunctionKey("sync", "gpu memory" if row.role == ALLOCATE else "gpu", detail=row.name)


def _copy(row: CallRow, towards: int) -> FunctionKey:
    """Return the key of a copy from or to the GPU; `towards`: direction as in probes/calls/copies.py, -1 unknown."""
    return FunctionKey("memory", cuda.direction(towards), detail=row.name, resource="pcie")


def wait_s(calls: Events, table: Sequence[CallRow]) -> float:
    """Return the seconds of one thread in calls that wait for the GPU, overlaps counted once."""
    mine = calls[of_roles(calls, table, GPU_WAIT)]
    begin, end = mine["ts_ns"].astype(np.int64), (mine["ts_ns"] + mine["dur_ns"]).astype(np.int64)
    reach = np.maximum.accumulate(end) if len(end) else end
    before = np.concatenate(([0], reach[:-1])) if len(end) else end
    return float(np.maximum(end - np.maximum(begin, before), 0).sum()) / 1e9


def moved_bytes(events: Events, table: Sequence[CallRow], ranks: int) -> dict[FunctionKey, int]:
    """Return the bytes that a process sends for its enqueued collectives, by operation; `ranks`:
    number of participants.
    """
    calls = events[events["type"] == ring.CALL]
    calls = calls[of_roles(calls, table, ENQUEUE)] if len(calls) else calls
    found: dict[FunctionKey, int] = {}
    for index in np.unique(calls["what"]).tolist():
        row = table[index]
        alike, counts = np.unique(calls[calls["what"] == index][["arg", "aux"]], return_counts=True)
        moved = sum(
            collectives.wire_bytes(row, int(arg), int(aux), max(ranks, 2)) * count
            for (arg, aux), count in zip(alike.tolist(), counts.tolist(), strict=True)
        )
        function = FunctionKey("collective", row.name, detail=row.family, resource="nic")
        found[function] = found.get(function, 0) + int(moved)
    return found
