"""`rankscope ledger` beside a real job: a pause that recurs is counted, named by a window of the service's own, and shown."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labsupport import RANKSCOPE, RunningJob, rankscope

pytestmark = pytest.mark.alone  # on a busy machine other steps are late too, and the pause is told after minutes

Torchrun = Callable[..., RunningJob]
HEALING_JOB = Path(__file__).with_name("healing_job.py")


def test_a_pause_that_recurs_is_named_and_its_hours_are_shown(torchrun: Torchrun, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    sick, state = tmp_path / "sick", tmp_path / "state"
    sick.write_text("compact")
    job = torchrun("300", str(sick), script=HEALING_JOB)
    said = tmp_path / "said"
    service = subprocess.Popen(
        [RANKSCOPE, "watch", "--no-routine", "--state", state, "--history", tmp_path / "history"],
        stdout=said.open("wb"), stderr=(tmp_path / "stderr").open("wb"),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 150
        while "a pause that recurs: compact (healing_job.py:" not in said.read_text():
            assert service.poll() is None and time.monotonic() < deadline, (
                said.read_text() + (tmp_path / "stderr").read_text()
            )
            time.sleep(0.2)
        service.send_signal(signal.SIGTERM)
        assert service.wait(timeout=20) == 0
    finally:
        service.kill()
        service.wait()
    (ledger,) = shown(state, job.name)
    (pause,) = [one for one in ledger["entries"] if one["kind"] == "pause" and one["named"]]
    assert pause["what"].startswith("compact (healing_job.py:")
    assert pause["count"] >= 3 and pause["ranks"] == [[1, pause["count"]]]
    assert 0.3 < pause["seconds"] / pause["count"] < 0.8
    assert pause["every_steps"] == 20 or 2.0 < pause["every_seconds"] < 5.0
    spent_s = (
        ledger["productive_seconds"] + ledger["others"]["seconds"] + sum(one["seconds"] for one in ledger["entries"])
    )
    assert abs(spent_s - (ledger["until"] - ledger["began"])) < 1.0
    text = rankscope("ledger", job.name, "--state", str(state)).stdout
    assert "compact (healing_job.py:" in text and "rank-hours" in text and max(map(len, text.splitlines())) <= 80


def shown(state: Path, job: str) -> list[dict[str, Any]]:
    done = rankscope("ledger", job, "--state", str(state), "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
