"""A rank that downloads after steps of the same window, while the others wait: it loads, and is not locked."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from builders import Job, build, codes, said, slow_python

from rankscope.diagnose.infer.causes.hang.loading import Load, loads
from rankscope.diagnose.infer.fleet.counters import Counters
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.fleet.model import Flows
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.schema import SOCKET_TO

SILENT_S, S3 = 8.0, "10.9.0.1:443"


def verdict_of(received: float, sent: float, waits: float, job: Job | None = None) -> Verdict:
    """Rank 0 has waited for a connection since the last step, all others in a collective."""
    counters = [
        {"scope": "rank", "instance": S3, "rank": 0, "name": f"silence.{name}", "unit": unit, "value": value}
        for name, unit, value in (
            ("received_bytes", "bytes", received), ("sent_bytes", "bytes", sent), ("waits", "events", waits),
        )
    ]  # fmt: skip
    columns = {
        rank: {"last_progress_s": SILENT_S, "in_collective_s": 0.0 if rank == 0 else SILENT_S - 0.1}
        for rank in range(8)
    }
    job = job or Job()
    job.ranks_columns.update(columns)
    job.counters.extend(counters)
    return diagnose(build(job))


@pytest.mark.parametrize(("received", "sent", "waits"), [(400 << 20, 1 << 20, 3), (80_000, 900, 160)])
def test_a_download_after_steps_is_told_and_nobody_is_accused(received: float, sent: float, waits: float) -> None:
    verdict = verdict_of(received, sent, waits)
    assert (verdict.status, verdict.suspects) == ("unknown", ())
    assert verdict.notes[0].code is NoteCode.LOADING
    assert f"come from {S3}: it loads" in verdict.notes[0].text
    assert said(verdict, NoteCode.LOADING).startswith("rank 0: no step for 8")


@pytest.mark.parametrize(("received", "sent", "waits"), [
    (0, 0, 0),  # nothing comes
    (80_000, 900, 1),  # it came once
    (40_000, 30_000, 2000),  # it asks whether a key is there yet, again and again
])  # fmt: skip
def test_who_waits_for_a_connection_that_brings_nothing_hangs(received: float, sent: float, waits: float) -> None:
    verdict = verdict_of(received, sent, waits)
    assert verdict.status == "hang"
    assert verdict.suspects[0].ranks == (0,)
    assert NoteCode.LOADING not in codes(verdict)


def test_a_fault_of_the_steps_before_is_told_beside_it() -> None:
    verdict = verdict_of(400 << 20, 0, 3, slow_python(3, 0.3))
    assert verdict.status == "fault"
    assert verdict.suspects[0].ranks == (3,)
    assert NoteCode.LOADING in codes(verdict)


def test_what_comes_from_very_many_addresses_is_looked_up_by_address() -> None:
    # GIVEN a rank that waits for a lock, very many threads of it that wait for a connection each, and very many connections
    fleet, count = gather(build(Job())), 4000
    row, one, ones = np.arange(count), np.zeros(count, dtype=np.int64), np.ones(count)
    first = row == 0
    peers = tuple(f"10.0.{each // 256}.{each % 256}" for each in row.tolist())
    table = replace(
        fleet.patterns,
        rank=one,
        thread=Labels(one + ~first, ("training", "other")),
        kind=Labels(one, ("sync",)),
        name=Labels(one, ("futex",)),
        detail=Labels(row, ("", *(f"x{SOCKET_TO}{peer}:443" for peer in peers[1:]))),
        beta=ones,
        count=one,
    )
    much = np.where(row == count - 1, 1e12, 0.0)
    flows = Flows(one, peers, peers, ("",) * count, one + 0.0, much, *(one + 0.0 for _ in range(5)))
    fleet = replace(fleet, patterns=table, flows=flows, counters=Counters())
    began = time.process_time()
    found = loads(fleet, 0, fleet.seconds)
    # THEN the last one is found soon
    assert found == Load(f"{peers[-1]}:443", 1e12)
    assert time.process_time() - began < 1.5
