"""A job that waits for a download in the middle of training is told as what it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labsupport import RunningJob, begun

Torchrun = Callable[..., RunningJob]


@pytest.mark.apart  # a job that takes its CPUs would be a fault of this host
def test_a_download_that_begins_after_steps_is_told_as_what_it_is(
    torchrun: Torchrun, slow_server: int, tmp_path: Path
) -> None:
    order, script = tmp_path / "now", Path(__file__).with_name("loading_job.py")
    job = torchrun(str(order), f"http://127.0.0.1:{slow_server}/shard", script=script)
    observer = begun("diagnose", "--no-history", "--json", "--window", "14", "--job", job.name)
    time.sleep(3.0)
    order.touch()
    said, _ = observer.communicate(timeout=90)
    verdict = json.loads(said)
    assert (verdict["status"], verdict["suspects"], observer.returncode) == ("unknown", [], 3)
    assert verdict["notes"][0].startswith("rank 0: no step for "), verdict["notes"]
    assert f"come from 127.0.0.1:{slow_server}: it loads" in verdict["notes"][0]
