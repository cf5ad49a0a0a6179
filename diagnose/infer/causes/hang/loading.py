"""A rank that is late because it downloads, while the others wait in a collective.

A rank loads if the connection that it has waited for since its last progress, itself or through
another of its threads, brings a megabyte per second; or, however slowly, if it waits again and
again and receives ten times as many bytes as it sends. Answers to a client that polls in vain are
as short as its requests.

In a window without steps its patterns and flows show this; otherwise what the observer counted
since the last progress (observer/tables/silence_rows.py). A rank that loads is no suspect of a
hang, and a job that waits for it is not reported healthy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hang.silence import patience_s, silent_s
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import rank_list, rate, seconds
from rankscope.observer.window.schema import SOCKET_TO
from rankscope.observer.window.store.summary import address_of

LOCKS = ("futex", "semaphore")


@dataclass(frozen=True, slots=True)
class Load:
    """The peer address that sends to a rank, and the bytes received."""

    peer: str
    received_bytes: float


def loads(fleet: Fleet, row: int, silent: float) -> Load | None:
    """Return the download that the rank has waited for in the last `silent` seconds; None without one."""
    counters = fleet.counters
    received = {one.instance: one.value for one in counters.of("silence.received_bytes", row)}
    sent = {one.instance: one.value for one in counters.of("silence.sent_bytes", row)}
    for waits in counters.of("silence.waits", row):
        much = received.get(waits.instance, 0.0)
        if _brings(much, sent.get(waits.instance, 0.0), waits.value, silent):
            return Load(waits.instance, much)
    return _without_steps(fleet, row) if silent >= limits.NEARLY_ALWAYS * fleet.seconds else None


def waited_for(fleet: Fleet, step_s: float | None) -> Note | None:
    """Return a note on ranks that load at the end of the window while others wait in a collective.

    None unless all running ranks are silent, at least one waits in a collective, and one of those that
    do not wait loads. `step_s`: an ordinary step, as for `patience_s`.
    """
    ranks, silent, patience = fleet.ranks, silent_s(fleet), patience_s(fleet, step_s)
    there = np.array([state == "running" for state in ranks.state], dtype=bool)
    waiting = ranks.in_collective_s >= min(patience, 0.5 * fleet.seconds)
    if not fleet.steps.count or not waiting.any() or not (silent >= min(patience, 0.9 * fleet.seconds))[there].all():
        return None
    found = {
        row: load
        for row in np.flatnonzero(there & ~waiting).tolist()
        if (load := loads(fleet, row, float(silent[row])))
    }
    if not found:
        return None
    row, load = max(found.items(), key=lambda item: float(silent[item[0]]))
    who = rank_list(tuple(int(ranks.number[one]) for one in found))
    since_s = float(silent[row])
    text = (
        f"{who}: no step for {seconds(since_s)} at the end of the window, while {rate(load.received_bytes / since_s)} come from "
        f"{load.peer}: it loads, and the others wait for it in a collective"
    )
    return Note(NoteCode.LOADING, text)


def longest_pattern(fleet: Fleet, row: int) -> int | None:
    """Return the index of the training thread's pattern with the largest share of the window."""
    table = fleet.patterns
    mine = np.flatnonzero((table.rank == row) & (table.thread.codes == table.thread.code("training")))
    return int(mine[np.argmax(table.beta[mine])]) if len(mine) else None


def _brings(received: float, sent: float, waits: float, passed_s: float) -> bool:
    """Return whether a connection brings a download: 1 MB a second, or ten times the bytes sent in many waits.

    `waits`: number of waits for it; `passed_s`: seconds in which the bytes came.
    """
    much = received >= limits.BYTES_LEAST * passed_s
    return bool(much or (waits >= limits.STEPS_FEW and received > limits.OTHER_KIND * sent))


def _without_steps(fleet: Fleet, row: int) -> Load | None:
    """Return the download from an address that the rank's longest pattern waits for, or None.

    Where that pattern waits for a lock, the rank's other threads are examined instead.
    """
    table, flows = fleet.patterns, fleet.flows
    each = longest_pattern(fleet, row)
    if each is None:
        return None
    waits = [each]
    if table.kind.at(each) == "sync" and table.name.at(each) in LOCKS:
        waits = np.flatnonzero((table.rank == row) & (table.thread.codes == table.thread.code("other"))).tolist()
    of_peer: dict[str, list[int]] = {}
    for flow in np.flatnonzero(flows.rank == row).tolist():
        of_peer.setdefault(flows.peer[flow], []).append(flow)
    for wait in waits:
        awaited = table.detail.at(wait).partition(SOCKET_TO)[2]
        if not awaited:
            continue
        there = np.array(of_peer.get(address_of(awaited), ()), dtype=np.int64)
        received, sent = float(flows.received_bytes[there].sum()), float(flows.sent_bytes[there].sum())
        if _brings(received, sent, float(table.count[wait]), fleet.seconds):
            return Load(awaited, received)
    return None
