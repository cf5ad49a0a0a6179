"""All ranks but one wait in a collective, or all wait and one elsewhere: what keeps that one is told by what its thread does."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Job as Built
from builders import build, columns, stalled
from starting import LOAD, starting

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window.folder import Window
from rankscope.observer.window.schema import ENDED
from rankscope.observer.window.stacks import StackFrame

LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REPORT = StackFrame("share_report", "/srv/job/report.py", 30)
WAITS = ("collective", "all_reduce", "gloo", (StackFrame("all_reduce", LIBRARY, 9),), 0.99)
ELSEWHERE = ("collective", "all_gather", "gloo", (REPORT, StackFrame("all_gather", LIBRARY, 9)), 0.99)


def hanging(
    at: list[tuple[str, str, str, tuple[StackFrame, ...], float]], outside: tuple[int, ...] = (0,), **of_first: Any
) -> Window:
    """Ranks that make no progress; all but `outside` are in a collective. `of_first`: columns of rank 0's patterns."""
    window = starting(at)
    rows = [
        row | {"last_progress_s": None, "in_collective_s": 0.0 if row["rank"] in outside else 20.0}
        for row in window.ranks.to_pylist()
    ]
    window = columns(window, "ranks", rows)
    patterns = [
        row | (of_first if row["rank"] == 0 and row["beta"] > 0.5 else {}) for row in window.patterns.to_pylist()
    ]
    return columns(window, "patterns", patterns)


def told(verdict: Verdict) -> list[tuple[str, str, tuple[int, ...], str]]:
    return [
        (one.component, one.cause, one.ranks, one.function.name if one.function else "") for one in verdict.suspects
    ]


@pytest.mark.parametrize(("at", "component", "cause"), [
    (("sync", "futex", "", (LOAD,), 0.98), "python", "lock"),
    (("sync", "read", f"a pipe, child python {ENDED}", (LOAD,), 0.98), "python", "dataloader"),
    (("sync", "read", "a pipe, child python", (LOAD,), 0.98), "process", "deadlock"),
    (("python", "spin", "", (LOAD,), 0.98), "process", "spinning"),
])  # fmt: skip
def test_what_keeps_a_rank_is_told_by_what_it_waits_for(at: Any, component: str, cause: str) -> None:
    verdict = diagnose([hanging([at, WAITS, WAITS, WAITS])])
    assert verdict.status == "hang"
    assert told(verdict) == [(component, cause, (0,), "load_checkpoint")]


@pytest.mark.parametrize(("stall_s", "hangs"), [(0.0, True), (2.0, True), (4.1, False)])
def test_a_silence_is_no_hang_while_the_job_came_back_from_one_as_long(stall_s: float, hangs: bool) -> None:
    # GIVEN a rank that was so much slower in one step, and since 3.5 s is silent in another
    (window,) = build(Built(ranks=4, steps=60, window_s=30.0))
    waits = [
        row | {"last_progress_s": 3.5, "in_collective_s": 0.0 if row["rank"] == 1 else 3.5}
        for row in window.ranks.to_pylist()
    ]
    verdict = diagnose([columns(stalled(window, 1, [20], stall_s), "ranks", waits)])
    assert (verdict.status == "hang") == hangs, verdict.status


def test_who_waits_for_the_gil_is_told_with_who_holds_it() -> None:
    holder = {
        "holder_name": "check_names",
        "holder_file": "/srv/job/check.py",
        "holder_line": 7,
        "holder_thread": "checker",
    }
    verdict = diagnose([hanging([("sync", "gil", "", (LOAD,), 0.98), WAITS, WAITS], **holder)])
    assert told(verdict) == [("python", "gil", (0,), "check_names")]


def test_a_file_call_that_does_not_come_back_is_a_stalled_file_system() -> None:
    reads = ("io", "read", "/data/part-1.bin", (LOAD,), 0.98)
    verdict = diagnose([hanging([reads, WAITS, WAITS], count=1, bytes=0)])
    assert told(verdict) == [("storage", "stalled", (0,), "load_checkpoint")]
    assert verdict.suspects[0].instance == "/data/part-1.bin"
    served = {
        "scope": "storage", "instance": "NFS server nas1 (10.0.0.5) for /data (nfs4 0:53)", "name": "storage.reads", "unit": "events",
        "value": 0.0,
    }  # fmt: skip
    window = hanging([reads, WAITS, WAITS], count=1, bytes=0)
    (suspect,) = diagnose([columns(window, "counters", [served])]).suspects
    assert "Look at NFS server nas1 (10.0.0.5), whose file load_checkpoint" in suspect.action
    assert ("served by", "NFS server nas1 (10.0.0.5)") in [(one.measure, one.value) for one in suspect.evidence]


def test_a_rank_whose_writes_come_back_is_at_work_and_nothing_hangs() -> None:
    writes = ("io", "write", "/data/checkpoint", (LOAD,), 0.98)
    verdict = diagnose([hanging([writes, WAITS, WAITS], count=400, bytes=400 << 20)])
    assert (verdict.status, verdict.suspects) == ("unknown", ())


@pytest.mark.parametrize(("received", "sent", "waits", "status"), [
    (400 << 20, 300 << 20, 1, "unknown"),
    (2 << 20, 900, 700, "unknown"),  # a slow one: 100 kB/s
    (2 << 20, 900, 1, "hang"),  # it was one
    (40_000, 30_000, 2000, "hang"),  # it asks whether a key is there yet, again and again
    (0, 0, 20, "hang"),
])  # fmt: skip
def test_a_rank_that_downloads_is_at_work_and_one_whose_connections_bring_nothing_hangs(
    received: int, sent: int, waits: int, status: str
) -> None:
    """Weights that rank 0 fetches for all, who wait at a barrier."""
    fetches = ("sync", "recv", "a socket to 10.9.0.1:443", (LOAD,), 0.99)
    window = hanging([fetches, WAITS, WAITS], count=waits)
    flows = window.flows.to_pylist()
    download = {"rank": 0, "peer": "10.9.0.1:443", "received_bytes": received, "sent_bytes": sent}
    verdict = diagnose([columns(window, "flows", [*flows, flows[0] | download])])
    assert verdict.status == status
    if status == "unknown":
        assert "rank 0 waits in load_checkpoint (utils.py:12) for a socket to 10.9.0.1:443" in verdict.notes[0].text


@pytest.mark.parametrize(("received", "status"), [(2 << 20, "unknown"), (0, "hang")])
def test_a_rank_that_waits_for_its_threads_is_at_work_while_one_of_them_downloads(received: int, status: str) -> None:
    window = hanging([("sync", "futex", "", (LOAD,), 0.99), WAITS, WAITS])
    patterns = window.patterns.to_pylist()
    [waits] = [row for row in patterns if row["rank"] == 0 and row["beta"] > 0.5]
    thread = waits | {"thread": "other", "name": "recv", "detail": "a socket to 10.9.0.1:443", "beta": 0.0, "count": 99}
    window = columns(window, "patterns", [*patterns, thread])
    flows = window.flows.to_pylist()
    download = {"rank": 0, "peer": "10.9.0.1:443", "received_bytes": received, "sent_bytes": 900}
    verdict = diagnose([columns(window, "flows", [*flows, flows[0] | download])])
    assert verdict.status == status


@pytest.mark.parametrize(("places", "status"), [(20, "unknown"), (4, "hang")])
def test_a_rank_that_computes_now_here_now_there_is_at_work_and_one_that_turns_in_a_loop_hangs(
    places: int, status: str
) -> None:
    """An evaluation on one rank, for which the others wait at a barrier."""
    window = hanging([("python", "forward", "", (LOAD,), 0.98), WAITS, WAITS])
    rows = window.patterns.to_pylist()
    [whole] = [row for row in rows if row["rank"] == 0 and row["beta"] > 0.5]
    parts = [whole | {"name": f"layer{number}", "beta": 0.98 / places} for number in range(places)]
    verdict = diagnose([columns(window, "patterns", [row for row in rows if row is not whole] + parts)])
    assert verdict.status == status
    if status == "unknown":
        assert "rank 0 computes in load_checkpoint" in verdict.notes[0].text


def test_a_rank_in_another_collective_than_the_others_is_what_they_wait_for() -> None:
    verdict = diagnose([hanging([ELSEWHERE, WAITS, WAITS, WAITS], outside=())])
    assert verdict.status == "hang"
    assert told(verdict) == [("process", "missing-collective", (0,), "share_report")]
    said = {one.measure: one.value for one in verdict.suspects[0].evidence}
    assert "share_report (report.py:30)" in str(said["where it is"])


@pytest.mark.parametrize(
    "at", [[ELSEWHERE, ELSEWHERE, WAITS, WAITS], [ELSEWHERE, WAITS]], ids=["half and half", "two ranks"]
)
def test_where_no_place_has_most_of_the_ranks_nobody_is_accused_for_being_elsewhere(at: Any) -> None:
    verdict = diagnose([hanging(at, outside=())])
    assert (verdict.status, verdict.suspects) == ("hang", ())


def test_a_rank_killed_while_its_control_group_ran_out_of_memory_is_told_so() -> None:
    counters = [
        {
            "scope": "cgroup",
            "instance": "/job/rank3",
            "rank": 3,
            "name": "memory.oom_kills",
            "kind": "delta",
            "value": 1.0,
            "unit": "events",
        }
    ]
    ended = {"state": "exited", "ended_s": 2.0, "exit_status": 9}
    waits = {"last_progress_s": 8.0, "in_collective_s": 7.9}
    job = Built(ranks_columns={rank: ended if rank == 3 else dict(waits) for rank in range(8)}, counters=counters)
    verdict = diagnose(build(job))
    assert [(one.component, one.cause, one.ranks) for one in verdict.suspects] == [("memory", "oom-kill", (3,))]
