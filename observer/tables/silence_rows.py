"""Build rows of the table `counters`: traffic on a rank's awaited connections while it makes no progress. Pure.

A rank that waits for a connection that delivers data is loading; one that waits for nothing that
arrives hangs. The decision is made later (diagnose): here the awaited connections since the rank's
last progress are recorded, with their traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.thread import syscalls
from rankscope.observer.window.rows import CounterRow
from rankscope.observer.window.schema import SOCKET_TO
from rankscope.observer.window.store.summary import address_of
from rankscope.probes.base.arrays import Ints
from rankscope.probes.bpf import ring
from rankscope.probes.network.flows import FlowSummary

_MOST = 0.5  # share of the silence


def silence_rows(
    number: int, raw: RawProcess, training_thread: int, silent_s: float | None, flows: Sequence[FlowSummary]
) -> list[CounterRow]:
    """Build rows of traffic and waits per connection awaited for at least half of the time since the last progress.

    `number`: the rank's number. `silent_s`: seconds from the last progress to the end (None: no
    progress in the window). `flows`: connections of this process. If the training thread waits for
    another thread instead, the connections that the other Python threads await count.
    """
    end_ns = raw.start_ns + int(raw.window_s * 1e9)
    since_ns = raw.start_ns if silent_s is None else max(end_ns - int(silent_s * 1e9), raw.start_ns)
    mine = _waits(raw, (training_thread,), since_ns, end_ns)
    least_ns = _MOST * (end_ns - since_ns)
    awaited = _sockets(raw, mine, least_ns)
    locked = np.isin(mine[:, 1], list(syscalls.THREAD_CALLS))
    if not awaited and mine[locked, 3].sum() >= least_ns:  # it waits for a thread of its own
        awaited = _sockets(raw, _waits(raw, raw.python_tids - {training_thread}, since_ns, end_ns), least_ns)
    rows = []
    for peer, often in awaited.items():
        moved = [flow.since(since_ns) for flow in flows if _end(flow.peer) == _end(peer)]
        for name, unit, value in (
            ("silence.received_bytes", "bytes", sum(received for received, _ in moved)),
            ("silence.sent_bytes", "bytes", sum(sent for _, sent in moved)),
            ("silence.waits", "events", often),
        ):
            rows.append(CounterRow("rank", peer, rank=number, name=name, unit=unit, value=float(value)))
    return rows


def _end(endpoint: str) -> tuple[str, str]:
    """Split an endpoint 'address:port' into its address, in a uniform form, and port, for comparisons."""
    return address_of(endpoint), endpoint.rpartition(":")[2]


def _waits(raw: RawProcess, tids: Iterable[int], since_ns: int, end_ns: int) -> Ints:
    """Return the waits of these threads in this time, a row each: (thread, system call, argument, ns spent in it).

    Includes waits in progress at the end. Times are ns of CLOCK_MONOTONIC.
    """
    away = raw.events[(raw.events["type"] == ring.OFFCPU) & np.isin(raw.events["tid"], list(tids))]
    away = away[away["ts_ns"] + away["dur_ns"] > since_ns]
    start, end = away["ts_ns"].astype(np.int64), (away["ts_ns"] + away["dur_ns"]).astype(np.int64)
    spent = np.minimum(end, end_ns) - np.maximum(start, since_ns)
    columns = [*(away[name].astype(np.int64) for name in ("tid", "what", "arg")), spent]
    still = [
        (tid, one.syscall, one.argument, end_ns - max(one.since_ns, since_ns))
        for tid in tids
        if (one := raw.open_absences.get(tid)) is not None
    ]
    return np.concatenate((np.column_stack(columns), np.array(still, dtype=np.int64).reshape(-1, 4)))


def _sockets(raw: RawProcess, waits: Ints, least_ns: float) -> dict[str, int]:
    """Return {peer of a connection: number of waits for it}, of those awaited `least_ns` or longer in all.

    `waits`: rows from `_waits`. In the order in which they were awaited first.
    """
    first: dict[str, int] = {}
    spent: dict[str, int] = {}
    often: dict[str, int] = {}
    for of_call, target in raw.targets.items():
        if target.startswith(SOCKET_TO) and len(mine := np.flatnonzero((waits[:, :3] == of_call).all(axis=1))):
            peer = target.removeprefix(SOCKET_TO)
            first[peer] = min(int(mine[0]), first.get(peer, len(waits)))
            spent[peer] = spent.get(peer, 0) + int(waits[mine, 3].sum())
            often[peer] = often.get(peer, 0) + len(mine)
    return {peer: often[peer] for peer in sorted(first, key=first.__getitem__) if spent[peer] >= least_ns}
