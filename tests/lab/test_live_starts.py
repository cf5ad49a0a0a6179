"""A job that starts is no hang, and the verdict says which rank the others wait for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from labsupport import RunningJob, rankscope

pytestmark = pytest.mark.beside

Torchrun = Callable[..., RunningJob]
FROM_MAIN = Path(__file__).with_name("late_job.py").read_text().splitlines().index("def main() -> None:") + 1


def imported(pid: int) -> bool:
    """Whether a rank sleeps after it has imported torch (0.7 s of CPU time or more)."""
    rank = psutil.Process(pid)
    used = rank.cpu_times()
    return used.user + used.system > 0.5 and rank.status() == psutil.STATUS_SLEEPING


def test_a_start_names_the_rank_that_the_others_wait_for_and_is_no_hang(torchrun: Torchrun) -> None:
    # GIVEN a job of three ranks of which two wait for the third, which sleeps in its own main
    job = torchrun("60", ranks=3, script=Path(__file__).with_name("late_job.py"), wait=False)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and sum(imported(pid) for pid in job.ranks()) < 3:
        time.sleep(0.2)
    time.sleep(2.0)

    # WHEN it is recorded and judged
    done = rankscope("diagnose", "--no-history", "--json", "--window", "4", "--at-most", "4", "--job", job.name)

    # THEN it starts, with who waits where for which rank
    verdict = json.loads(done.stdout)
    assert (verdict["status"], verdict["suspects"], done.returncode) == ("unknown", [], 3), done.stdout
    text = verdict["notes"][0]
    place = f"in main (late_job.py:{FROM_MAIN})"
    assert f"ranks 0, 1 wait {place}, in its call of init_process_group, for other ranks" in text, text
    assert f"rank 2 sleeps {place}" in text and "ranks 0, 1 wait for rank 2; the job was started" in text, text
