"""Hardware that fails ends ranks and hangs jobs: it is named before the process that died of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import builders
import numpy as np
import pytest
from builders import codes, first, said
from hardware_builders import Machine, gpu, named, nic

from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.causes.hang.failed_hardware import failed_gpus
from rankscope.diagnose.infer.fleet.counters import Columns, Counters
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.diagnose.infer.verdict.sentence import sentence_of

WAITS = {"last_progress_s": 8.0, "in_collective_s": 7.9}
ABORTED = {"state": "exited", "last_progress_s": 8.2, "ended_s": 12.0, "exit_status": 6}


def event(rank: int, name: str, of: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "scope": "gpu",
        "instance": gpu(rank),
        "rank": rank if of is None else of,
        "name": name,
        "value": 1.0,
        **more,
    }


def hung(
    rank: int, how: dict[str, Any], *events: dict[str, Any], ranks: int = 8, without_gpu: int = -1, **more: Any
) -> Verdict:
    columns = {each: {**WAITS, **({"gpus": []} if each == without_gpu else {})} for each in range(ranks)}
    columns[rank] = how
    return Machine(ranks=ranks, columns=columns, more=list(events), without=("gpu.lost",), **more).verdict()


@pytest.mark.parametrize("ranks", [2, 8, 97])
@pytest.mark.parametrize(
    "how", [WAITS, {"last_progress_s": 8.0}, ABORTED, {"state": "exited"}], ids=["waits", "silent", "aborted", "gone"]
)
@pytest.mark.parametrize(
    ("name", "cause"),
    [("gpu.lost", "lost"), ("gpu.xid.79", "lost"), ("gpu.xid.119", "xid"), ("gpu.xid.48", "xid"), ("gpu.xid.94", "xid"),
     ("gpu.xid.95", "xid")],
)  # fmt: skip
def test_a_failed_gpu_explains_a_dead_or_hung_rank(name: str, cause: str, how: dict[str, Any], ranks: int) -> None:
    # GIVEN a rank that stands still or is gone, the others waiting, and a GPU that failed
    verdict = hung(1, how, event(1, name), ranks=ranks)
    # THEN the GPU is named, not the process
    assert (verdict.status, verdict.exit_code) == ("hang", 2)
    assert named(verdict) == [("gpu", cause, "gpu1", (1,))]
    assert "power-cycle" in first(verdict).action or "dmesg" in first(verdict).action
    lines = list(report(verdict))
    assert "no step has ended for" in " ".join(" ".join(lines[:3]).split()) and all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("number", [79, 95])
def test_an_xid_that_was_logged_before_the_window_explains_the_rank_that_is_gone(number: int) -> None:
    verdict = hung(5, {"state": "exited", "last_progress_s": None}, event(5, f"gpu.earlier_xid.{number}", kind="gauge"))
    assert verdict.status == "hang" and first(verdict).component == "gpu" and first(verdict).ranks == (5,)
    assert any(evidence.source == "kernel log" for evidence in first(verdict).evidence)


def test_an_xid_that_was_logged_before_the_window_on_the_gpu_of_a_rank_that_lives_explains_nothing() -> None:
    verdict = hung(5, {"state": "exited", "last_progress_s": None}, event(2, "gpu.earlier_xid.79", kind="gauge"))
    assert (first(verdict).component, first(verdict).ranks) == ("process", (5,))


def test_the_gpu_of_another_rank_than_the_one_that_ended_first_is_named() -> None:
    # GIVEN that the watchdog of rank 4 ended it because rank 1 never came
    verdict = hung(4, ABORTED, event(1, "gpu.xid.79"))
    assert named(verdict) == [("gpu", "lost", "gpu1", (1,))]


@pytest.mark.parametrize("number", [13, 31, 32, 69])
def test_an_xid_that_user_code_causes_is_why_its_own_rank_ended(number: int) -> None:
    verdict = hung(1, ABORTED, event(1, f"gpu.xid.{number}"))
    suspect = first(verdict)
    assert named(verdict) == [("gpu", "xid", "gpu1", (1,))]
    assert "user code" in suspect.evidence[0].measure and "Look at the job first" in suspect.action
    # AND it says less than one that no code causes
    assert suspect.confidence < first(hung(1, ABORTED, event(1, "gpu.xid.48"))).confidence


@pytest.mark.parametrize(
    ("rank", "number", "how"),
    [
        (1, 43, ABORTED),
        (1, 45, ABORTED),
        (5, 31, ABORTED),
        (1, 31, {**ABORTED, "exit_status": 9}),
        (1, 13, {**ABORTED, "exit_status": 15}),
    ],
)
def test_an_xid_that_only_follows_leaves_the_process(rank: int, number: int, how: dict[str, Any]) -> None:
    # GIVEN what follows the end of a process, is another rank's, or of a rank that somebody killed
    verdict = hung(1, how, event(rank, f"gpu.xid.{number}"))
    assert [(s.component, s.cause, s.ranks) for s in verdict.suspects] == [("process", "exited", (1,))]


def test_a_gpu_that_nobody_claims_any_more_is_that_of_the_rank_that_died() -> None:
    # GIVEN that the driver lists no process on the GPU: the counter belongs to no rank
    verdict = hung(3, ABORTED, event(3, "gpu.xid.79", of=-1))
    assert named(verdict) == [("gpu", "lost", "gpu3", (3,))]
    # AND neither does the rank know its GPU
    verdict = hung(3, {**ABORTED, "gpus": []}, event(3, "gpu.xid.79", of=-1))
    assert named(verdict) == [("gpu", "lost", "gpu3", (3,))]


def test_a_lost_gpu_that_no_rank_uses_is_a_note() -> None:
    verdict = Machine(more=[event(3, "gpu.lost", of=-1, instance="gpu9")], without=("gpu.lost",)).verdict()
    assert (verdict.status, verdict.suspects) == ("healthy", ())
    assert "gpu9" in said(verdict, NoteCode.GPU_LOST)


def test_a_stopped_rank_stays_the_first_suspect() -> None:
    verdict = hung(2, {"state": "stopped", "stopped_s": 8.1, "last_progress_s": 8.2}, event(5, "gpu.xid.119"))
    assert [(s.component, s.cause) for s in verdict.suspects] == [("process", "stopped"), ("gpu", "xid")]


def test_who_holds_a_rank_by_tracing_is_told_and_not_how_to_go_on() -> None:
    held = {"state": "stopped", "stopped_s": 8.1, "last_progress_s": 8.2, "tracer": "py-spy (4242)"}
    (suspect,) = hung(2, held).suspects
    assert (suspect.cause, suspect.ranks) == ("stopped", (2,)) and "kill -CONT" not in suspect.action
    assert suspect.action.startswith("py-spy (4242) holds it")
    assert "py-spy (4242) holds it by tracing" in sentence_of(hung(2, held))


@pytest.mark.parametrize(("silent", "status"), [(0.9, "hang"), (0.1, "healthy")])
def test_a_rank_whose_gpu_is_lost_will_not_go_on(silent: float, status: str) -> None:
    # GIVEN a window that ended so soon after the loss that nobody else stands still yet
    columns = {3: {"last_progress_s": silent}}
    verdict = Machine(columns=columns, more=[event(3, "gpu.lost")], without=("gpu.lost",)).verdict()
    assert verdict.status == status
    assert NoteCode.GPU_LOST in codes(verdict) or named(verdict) == [("gpu", "lost", "gpu3", (3,))]


def test_everybody_waits_and_one_port_is_down() -> None:
    verdict = hung(1, WAITS, counters={(6, "nic.state"): 0.2})
    assert named(verdict) == [("nic", "down", nic(6), (6,))]
    # AND nobody is named where most ports are down, or none
    assert not hung(1, WAITS, everywhere={"nic.state": 0.2}).suspects
    assert not hung(1, WAITS).suspects


def test_errors_on_all_gpus_name_none() -> None:
    verdict = hung(1, ABORTED, everywhere={"gpu.ecc_uncorrected": 2.0})
    assert [(s.component, s.cause) for s in verdict.suspects] == [("process", "exited")]


def test_an_uncorrected_memory_error_explains_a_dead_rank() -> None:
    assert named(hung(1, ABORTED, counters={(1, "gpu.ecc_uncorrected"): 1.0})) == [("gpu", "ecc-errors", "gpu1", (1,))]


def test_a_job_without_a_complete_step_tells_what_failed() -> None:
    verdict = Machine(steps=3, window_s=2.0, more=[event(3, "gpu.xid.63")]).verdict()
    assert verdict.status == "unknown" and "Xid 63" in said(verdict, NoteCode.XID)


def test_an_xid_of_no_number_is_ignored() -> None:
    verdict = hung(1, WAITS, event(1, "gpu.xid.unknown"), event(1, "gpu.xid."))
    assert (verdict.status, verdict.suspects) == ("hang", ())


@pytest.mark.parametrize("said_number", ["²", "٧٩", "9" * 4400])
def test_an_xid_whose_number_is_none_ends_no_judging(said_number: str) -> None:
    # GIVEN a counter whose name somebody else chose, beside a job that hangs
    verdict = hung(1, WAITS, event(1, f"gpu.xid.{said_number}"), event(1, f"gpu.earlier_xid.{said_number}"))
    # THEN it names nobody and is no Xid
    assert (verdict.status, verdict.suspects) == ("hang", ()) and NoteCode.XID not in codes(verdict)
    # AND a slow GPU is judged without it
    slow = Machine(kernels={5: 1.4}, more=[event(5, f"gpu.xid.{said_number}")]).verdict()
    assert named(slow) == [("gpu", "slow", "gpu5", (5,))] and NoteCode.XID not in codes(slow)


def test_a_gpu_whose_hung_rank_the_driver_no_longer_lists_is_found_by_who_has_none() -> None:
    verdict = hung(3, {**WAITS, "gpus": []}, event(3, "gpu.lost", of=-1))
    assert named(verdict) == [("gpu", "lost", "gpu3", (3,))]
    # AND it is nobody's where two ranks have none
    verdict = hung(3, {**WAITS, "gpus": []}, event(3, "gpu.lost", of=-1), without_gpu=5)
    assert not verdict.suspects and NoteCode.GPU_LOST in codes(verdict)


@pytest.mark.parametrize("missing", [(4,), (4, 6)])
def test_a_rank_that_ended_before_the_window_left_a_lost_gpu(missing: tuple[int, ...]) -> None:
    # GIVEN a job of which ranks are gone, the others silent from the start, in calls nobody saw begin
    machine = Machine(
        columns={rank: {"last_progress_s": None} for rank in range(8)}, more=[event(4, "gpu.lost", of=-1)]
    )
    machine.without = ("gpu.lost",)
    window = machine.windows()[0]
    for table in ("steps", "patterns"):
        window = builders.columns(window, table, [])
    for table in ("ranks", "counters"):
        rows = [row for row in getattr(window, table).to_pylist() if row["rank"] not in missing]
        window = builders.columns(window, table, rows)
    verdict = diagnose([window])
    # THEN the GPU is named, and its rank where only one is missing
    ranks = (4,) if len(missing) == 1 else ()
    assert verdict.status == "hang" and named(verdict) == [("gpu", "lost", "gpu4", ranks)]
    assert list(report(verdict))


def test_lost_gpus_that_nobody_claims_are_asked_of_all_ranks_once() -> None:
    # GIVEN very many ranks of a host, and very many lost GPUs there that are none of theirs
    fleet, count, gone = gather(Machine().windows()), 20_000, 2000
    ranks = fleet.ranks.taken(np.zeros(count, dtype=np.int64))
    row, one = np.arange(gone), np.zeros(gone, dtype=np.int64)
    name, same = Labels(one, ("gpu.lost",)), Labels(one, (ranks.observed_on[0],))
    gpus = Labels(row, tuple(f"gpu{number}" for number in range(100, 100 + gone)))
    ones = one + 1.0
    columns = Columns(same, name, gpus, one - 1, name, name, name, ones, ones, ones, ones, name, one)
    fleet = replace(fleet, ranks=ranks, counters=Counters(columns))
    began = time.process_time()
    assert failed_gpus(fleet) == ()
    assert time.process_time() - began < 1.5
