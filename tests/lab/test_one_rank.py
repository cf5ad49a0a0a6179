"""A job of one process is found, gets its steps, and a verdict with its budget; what idles is observed if it is asked for."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labsupport import rankscope

pytestmark = pytest.mark.beside

JOB = Path(__file__).with_name("one_rank_job.py")


@contextlib.contextmanager
def running(*command: str) -> Iterator[int]:
    """A Python program, by its pid."""
    program = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield program.pid
    finally:
        program.kill()
        program.wait()


def listed(pid: int) -> dict[str, Any] | None:
    ranks = json.loads(rankscope("ranks", "--json").stdout)["ranks"]
    return next((rank for rank in ranks if rank["pid"] == pid), None)


@pytest.fixture(scope="module")
def job() -> Iterator[int]:
    with running(str(JOB), "60") as pid:
        deadline = time.monotonic() + 30
        while listed(pid) is None:
            assert time.monotonic() < deadline, "a process that trains alone was not found"
        yield pid


def test_a_process_that_trains_alone_is_rank_0_of_its_own_job(job: int) -> None:
    found = listed(job)
    assert found is not None and found["launcher"] == "alone"
    assert (found["rank"], found["world_size"], found["title"]) == (0, 1, JOB.name)


def test_its_verdict_has_steps_and_a_budget_that_names_what_it_does(job: int) -> None:
    verdict = json.loads(rankscope("diagnose", "--no-history", "--json", "--window", "5", "--job", JOB.name).stdout)
    # beside other programs they may be named, but being alone is no reason not to know
    assert verdict["status"] == "healthy" or {one["component"] for one in verdict["suspects"]} == {"cpu"}, verdict
    assert "one rank: compared with nobody" in verdict["notes"]
    budget = verdict["budget"]
    assert (budget["of"], budget["ranks"]) == ("step", 1) and 0 < budget["seconds"] < 2
    assert sum(part["share"] for part in budget["parts"]) == pytest.approx(1, abs=0.01)
    share = {part["kind"]: part["share"] for part in budget["parts"]}
    assert share.get("not-timed", 0) < 0.05 and not share.keys() & {"waiting", "exchange", "collectives"}, share
    # most of what it does itself is loading, in the training process
    computes = sum(share.get(kind, 0) for kind in ("python", "libraries", "system"))
    assert share["input"] > computes, share
    loads = next(part for part in budget["parts"] if part["kind"] == "input")["items"][0]
    assert loads["function"]["name"] == "Sums.__getitem__" and loads["what"] == "loads in the training process", loads


def test_what_idles_is_no_rank_unless_it_is_asked_for() -> None:
    with running("-c", "import torch, time; time.sleep(60)") as pid:
        time.sleep(6)  # it has imported torch then
        assert listed(pid) is None
        done = rankscope("diagnose", "--no-history", "--json", "--window", "1", "--at-most", "1", "--pid", str(pid))
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["status"], verdict["ranks"]) == (3, "unknown", [0])
    assert (verdict["budget"]["of"], verdict["budget"]["parts"][0]["kind"]) == ("window", "asleep"), verdict["budget"]
