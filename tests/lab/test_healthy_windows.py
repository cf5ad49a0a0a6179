"""A window of a healthy job: nobody is accused by it, and it is small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from labsupport import RunningJob, rankscope

Torchrun = Callable[..., RunningJob]


@pytest.mark.apart
def test_a_healthy_job_is_not_accused_and_its_window_is_small(torchrun: Torchrun, tmp_path: Path) -> None:
    job = torchrun("60")
    done = rankscope("record", "--out", str(tmp_path), "--window", "20", "--job", job.name)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2 * 30_000
    judged = rankscope("diagnose", str(tmp_path), "--json")
    verdict = json.loads(judged.stdout)
    assert verdict["suspects"] == []
    assert judged.returncode in (0, 3)
