"""What a job recovers from by itself, it must still recover from while it is observed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from labsupport import RANKSCOPE

pytestmark = pytest.mark.beside

SCRIPT = """
import datetime, os, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
value = torch.ones(1009)
begin = time.monotonic()
print("trains", flush=True)
try:
    while True:
        time.sleep(0.05)
        dist.all_reduce(value)
        if rank == 1 and os.path.exists(sys.argv[1]):
            time.sleep(8)  # long enough for the other rank's collective to time out
            os._exit(0)
except RuntimeError as error:
    print("recovered", str(error)[-60:], flush=True)
    time.sleep(1)
    os._exit(23)
"""


def test_a_collective_that_times_out_under_observation_raises_in_python_and_does_not_kill_the_rank(
    tmp_path: Path,
) -> None:
    """An exception of C++ passes through the very functions that are timed."""
    script, late = tmp_path / "job.py", tmp_path / "late"
    script.write_text(SCRIPT)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29733", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(late)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline().strip() == "trains"
        pids = [word for rank in ranks for word in ("--pid", str(rank.pid))]
        observer = subprocess.Popen(
            [RANKSCOPE, "record", "--out", str(tmp_path / "windows"), "--window", "11", *pids],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert observer.stderr is not None
        for line in observer.stderr:
            if line.startswith("observing"):
                break
        time.sleep(3)  # the window begins at once: both ranks are here
        late.touch()
        said, errors = ranks[0].communicate(timeout=40)
        assert "recovered" in said, errors[-400:]
        assert ranks[0].returncode == 23
        assert observer.wait(timeout=60) == 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
