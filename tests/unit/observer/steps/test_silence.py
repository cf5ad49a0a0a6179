"""What a rank hears from the network since its last progress, and from whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.observer.tables.raw import OpenAbsence, RawProcess
from rankscope.observer.tables.silence_rows import silence_rows
from rankscope.probes.bpf import ring
from rankscope.probes.network.flows import FlowSummary, Seen

START_NS, WINDOW_S, MAIN, HELPER = 10**12, 20.0, 10, 11
RECV, FUTEX, S3 = 45, 202, "10.9.0.1:443"


def flow(peer: str, seen: Sequence[tuple[float, int, int]]) -> FlowSummary:
    samples = tuple(Seen(START_NS + int(at * 1e9), received, sent) for at, received, sent in seen)
    return FlowSummary(MAIN, "10.9.0.7:50000", peer, "eth0", 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, seen=samples)


def waits(tid: int, call: int, begin_s: float, end_s: float, each_s: float = 0.5) -> ring.Events:
    events = np.zeros(int((end_s - begin_s) / each_s), ring.EVENT)
    events["type"], events["tgid"], events["tid"], events["what"], events["arg"] = ring.OFFCPU, MAIN, tid, call, 9
    events["ts_ns"] = START_NS + ((begin_s + each_s * np.arange(len(events))) * 1e9).astype(np.int64)
    events["dur_ns"], events["aux"] = int(each_s * 1e9) - 1000, 1
    return events


def told(events: ring.Events, *flows: FlowSummary, silent_s: float | None = 8.0, **more: object) -> dict[str, float]:
    targets = {(tid, RECV, 9): f"a socket to {S3}" for tid in (MAIN, HELPER)}
    raw = RawProcess(
        MAIN, START_NS, WINDOW_S, events, {}, [], frozenset({MAIN, HELPER}), {}, {}, 0.0, 99.0, targets=targets
    )
    for name, value in more.items():
        object.__setattr__(raw, name, value)
    rows = silence_rows(3, raw, MAIN, silent_s, flows)
    assert all(row.rank == 3 and row.instance == S3 for row in rows)
    return {row.name: row.value for row in rows}


DOWNLOAD = flow(S3, [(0.0, 1000, 10), (10.0, 5000, 400), (12.0, 5000, 800), (14.0, 9000, 800), (19.9, 21000, 800)])


def test_what_came_since_the_last_progress_is_told_apart_from_what_came_before() -> None:
    elsewhere = flow("10.9.0.2:443", [(12.0, 0, 0), (19.0, 10**9, 0)])
    found = told(waits(MAIN, RECV, 12.0, 20.0), DOWNLOAD, elsewhere)
    assert found == {"silence.received_bytes": 16000, "silence.sent_bytes": 0, "silence.waits": 16}


def test_a_connection_that_is_waited_for_seldom_is_left_out() -> None:
    assert told(waits(MAIN, RECV, 17.0, 20.0), DOWNLOAD) == {}
    assert told(waits(MAIN, RECV, 2.0, 12.0), DOWNLOAD) == {}


def test_a_thread_that_is_waited_for_downloads_for_the_rank() -> None:
    both = np.concatenate((waits(MAIN, FUTEX, 12.0, 20.0, each_s=8.0), waits(HELPER, RECV, 12.0, 20.0)))
    assert told(both, DOWNLOAD)["silence.received_bytes"] == 16000
    alone = waits(HELPER, RECV, 12.0, 20.0)  # the training thread does something else meanwhile
    assert told(alone, DOWNLOAD) == {}


def test_a_wait_that_is_not_over_counts() -> None:
    still = OpenAbsence(MAIN, START_NS + 13 * 10**9, 0, 1, RECV, 9, 0)
    found = told(np.zeros(0, ring.EVENT), DOWNLOAD, open_absences={MAIN: still})
    assert found["silence.waits"] == 1


@pytest.mark.parametrize("peer", ["[::ffff:10.9.0.1]:443", S3])
def test_an_address_may_be_written_in_two_ways(peer: str) -> None:
    there = flow(peer, [(12.0, 0, 0), (19.0, 70, 7)])
    assert told(waits(MAIN, RECV, 12.0, 20.0), there)["silence.received_bytes"] == 70
