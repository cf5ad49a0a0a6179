"""Jobs whose steps run in threads that take turns: the steps, the waits and the slow function are found as in any other job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from labsupport import RunningJob, rankscope

pytestmark = pytest.mark.beside

JOB = Path(__file__).with_name("turns_job.py")
SLOW, SLOW_S, WINDOW_S = 1, 0.03, 8.0
Start = Callable[..., RunningJob]


def printed(path: Path, start_s: float, end_s: float) -> float:
    """The median step that the job itself wrote down of this time (CLOCK_REALTIME is not asked: the window's own steps are)."""
    ended, seconds = np.loadtxt(path, unpack=True)
    return float(np.median(seconds[(ended >= start_s) & (ended < end_s)]))


@pytest.mark.parametrize("kind", ["to-thread", "queue", "fresh"])
def test_steps_in_threads_that_take_turns_are_the_jobs_own(torchrun: Start, tmp_path: Path, kind: str) -> None:
    job = torchrun(kind, str(tmp_path), str(SLOW), script=JOB)
    done = rankscope("record", "--out", str(tmp_path / "windows"), "--window", str(WINDOW_S), "--job", job.name)
    assert done.returncode == 0, done.stderr
    folder = next(path.parent for path in (tmp_path / "windows").rglob("steps.parquet"))
    manifest = json.loads((folder / "window.json").read_text())
    start_s, end_s = manifest["start"], manifest["start"] + manifest["seconds"]
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    waited = {}
    for rank in (0, 1):
        mine = [one for one in steps if one["rank"] == rank]
        step_s = float(np.median([one["seconds"] for one in mine]))
        assert step_s == pytest.approx(printed(tmp_path / f"rank{rank}", start_s, end_s), rel=0.1)
        waited[rank] = float(np.median([one["wait_s"] for one in mine]))
    assert waited[0] - waited[1] > 0.5 * SLOW_S, waited
    verdict = json.loads(rankscope("diagnose", str(tmp_path / "windows"), "--json").stdout)
    first = verdict["suspects"][0]
    assert first["ranks"] == [SLOW]
    if kind != "fresh":
        assert first["function"]["name"] in ("prepare", "busy")
