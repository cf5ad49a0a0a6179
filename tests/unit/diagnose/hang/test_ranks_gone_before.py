"""A rank that had ended before anybody looked is named where the others wait for it; who may only not have been asked is not."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import Job, build, codes, first
from hardware_builders import Machine, gpu, named
from starting import LOAD, starting

from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame

WAITS = {"last_progress_s": None, "in_collective_s": 20.0}
STORE = StackFrame("TCPStore.wait", "/opt/venv/lib/python3.11/site-packages/torch/d.py", 9)


def said(name: str, rank: int, **more: Any) -> dict[str, Any]:
    return {"scope": "rank", "rank": rank, "name": name, "kind": "gauge", "value": 1.0, **more}


def without(
    window: Window, gone: tuple[int, ...], *counters: dict[str, Any], how: dict[str, Any] | None = None
) -> Window:
    """The window without these ranks, which the launcher of the others started too. `how`: what of the others is otherwise."""
    size = window.ranks.num_rows
    launched = {"local_world_size": size, "world_size": size, **(how or {})}
    rows = [
        {**row, "local_rank": row["rank"], **launched} for row in window.ranks.to_pylist() if row["rank"] not in gone
    ]
    window = builders.columns(window, "ranks", rows)
    for table in ("steps", "patterns"):
        kept = [row for row in getattr(window, table).to_pylist() if row["rank"] not in gone]
        window = builders.columns(window, table, kept)
    kept = [row for row in window.counters.to_pylist() if row["rank"] not in gone]
    return builders.columns(window, "counters", [*kept, *counters])


def hung(
    gone: tuple[int, ...], *counters: dict[str, Any], ranks: int = 8, how: dict[str, Any] | None = None
) -> Verdict:
    window = builders.columns(build(Job(ranks=ranks))[0], "steps", [])
    return diagnose([without(window, gone, *counters, how={**WAITS, **(how or {})})])


@pytest.mark.parametrize("ranks", [2, 3, 8, 97])
@pytest.mark.parametrize("name", ["census.gone", "ras.missing"])
def test_a_rank_that_had_ended_is_named_where_the_others_wait(name: str, ranks: int) -> None:
    verdict = hung((1,), said(name, 1, instance="0x570d" if name == "ras.missing" else ""), ranks=ranks)
    suspect = first(verdict)
    assert (verdict.status, verdict.exit_code) == ("hang", 2)
    assert (suspect.component, suspect.cause, suspect.ranks, suspect.host) == ("process", "exited", (1,), "node-0")
    assert "rank 1" in suspect.action
    assert all(len(line) <= 80 for line in report(verdict))


def test_all_that_are_gone_of_a_host_are_one_suspect() -> None:
    verdict = hung((1, 6), said("census.gone", 1), said("census.gone", 6), said("ras.missing", 6, instance="0x570d"))
    assert [(one.cause, one.ranks) for one in verdict.suspects] == [("exited", (1, 6))]
    assert any("0x570d" in one.measure for one in first(verdict).evidence)


@pytest.mark.parametrize(
    "counters",
    [
        (),  # it was not asked for: --pid
        (said("census.gone", 1, value=0.0),),
        (said("census.gone", 11),),  # no launcher here started it
        (said("ras.missing", 11, instance="0x570d"),),  # a number that the job does not have
        (said("ras.behind", 1),),
    ],
)
def test_a_rank_that_nobody_says_is_gone_is_not_accused(counters: tuple[dict[str, Any], ...]) -> None:
    verdict = hung((1,), *counters)
    assert (verdict.status, verdict.suspects) == ("hang", ())
    assert NoteCode.RANKS_MISSING_HERE in codes(verdict)


def test_who_is_seen_elsewhere_is_not_gone() -> None:
    # GIVEN two hosts, of which one says that it should have a rank that the other has
    windows = [builders.columns(one, "steps", []) for one in build(Job(ranks=4, hosts=2))]
    told = []
    for window in windows:
        rows = [
            {**row, **WAITS, "local_rank": row["rank"], "local_world_size": 4, "world_size": 4}
            for row in window.ranks.to_pylist()
        ]
        other = [rank for rank in range(4) if rank not in {row["rank"] for row in rows}]
        counters = [*window.counters.to_pylist(), *(said("census.gone", rank) for rank in other)]
        told.append(builders.columns(builders.columns(window, "ranks", rows), "counters", counters))
    assert not any(one.cause == "exited" for one in diagnose(told).suspects)


@pytest.mark.parametrize("silent", [(4,), (4, 5, 6, 7)])
def test_ranks_of_a_host_without_a_window_that_do_not_answer_nccl_are_named(silent: tuple[int, ...]) -> None:
    window = builders.columns(build(Job(ranks=4))[0], "steps", [])
    rows = [
        {**row, **WAITS, "local_rank": row["rank"], "local_world_size": 4, "world_size": 8}
        for row in window.ranks.to_pylist()
    ]
    window = builders.columns(window, "ranks", rows)
    told = [said("ras.missing", rank, instance="0x570d") for rank in silent]
    verdict = diagnose([builders.columns(window, "counters", [*window.counters.to_pylist(), *told])])
    suspect = first(verdict)
    assert (verdict.status, suspect.component, suspect.cause, suspect.ranks, suspect.host) == (
        "hang", "process", "missing-collective", silent, "",
    )  # fmt: skip
    assert suspect.confidence < first(hung((1,), said("census.gone", 1))).confidence
    assert all(len(line) <= 80 for line in report(verdict))


def test_a_job_that_moves_waits_for_nobody() -> None:
    verdict = diagnose([without(build(Job(ranks=8))[0], (1,), said("census.gone", 1))])
    assert verdict.status == "unknown" and NoteCode.RANKS_MISSING_HERE in codes(verdict)


@pytest.mark.parametrize(("gone", "named_first"), [((1,), (1,)), ((1, 2), ())], ids=["one", "half"])
def test_ranks_that_wait_from_the_start_wait_for_who_is_gone(
    gone: tuple[int, ...], named_first: tuple[int, ...]
) -> None:
    # GIVEN a job before its first collective, each rank in one place all the while
    window = starting([("sync", "recv", "a socket to 10.0.0.7:29500", (LOAD, STORE), 0.98)] * 4)
    how = {"last_progress_s": None, "in_collective_s": 0.0}
    verdict = diagnose([without(window, gone, *(said("census.gone", each) for each in gone), how=how)])
    assert tuple(rank for one in verdict.suspects for rank in one.ranks) == named_first
    assert (verdict.status == "hang") == bool(named_first)
    # AND who computes waits for nobody
    window = starting([("python", "spin", "", (LOAD,), 0.98)] * 4)
    assert not diagnose([without(window, gone, said("census.gone", 1), how=how)]).suspects


def test_ranks_that_were_told_to_end_did_not_wait() -> None:
    ended = {"state": "exited", "ended_s": 3.0, "exit_status": 15}
    verdict = hung((1,), said("census.gone", 1), how=ended)
    assert not verdict.suspects


def test_the_lost_gpu_of_a_rank_that_had_ended_is_named_with_its_rank() -> None:
    lost = {"scope": "gpu", "instance": gpu(4), "rank": -1, "value": 1.0}
    for event in ({**lost, "name": "gpu.lost"}, {**lost, "name": "gpu.earlier_xid.79", "kind": "gauge"}):
        for how in (WAITS, {"last_progress_s": None}):
            machine = Machine(more=[event], without=("gpu.lost",))
            window = without(machine.windows()[0], (4,), said("census.gone", 4), how=how)
            for table in ("steps", "patterns"):
                window = builders.columns(window, table, [])
            verdict = diagnose([window])
            if event["name"] == "gpu.lost" or how is WAITS:
                assert named(verdict) == [("gpu", "lost", "gpu4", (4,))], (event["name"], how)
            else:
                assert verdict.status != "fault"
