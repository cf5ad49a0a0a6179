"""What an operator meets beside one job that trains: two jobs, a job that is started again, a job that does not begin."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from labsupport import PLAIN_JOB, RunningJob, begun, rankscope

Torchrun = Callable[..., RunningJob]


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def waits_for_the_store(pid: int) -> bool:
    """Whether a rank has a connection to the place where ranks meet, and sleeps."""
    try:
        rank = psutil.Process(pid)
        return bool(rank.net_connections("tcp")) and rank.status() == psutil.STATUS_SLEEPING
    except psutil.NoSuchProcess:
        return False


def test_two_jobs_on_a_host_get_two_verdicts_and_the_worse_is_the_answer(torchrun: Torchrun, tmp_path: Path) -> None:
    script = tmp_path / "two_of_a_name.py"  # other tests' jobs have other names
    shutil.copy(PLAIN_JOB, script)
    healthy, slow = torchrun("60", script=script, wait=False), torchrun("60", "1", script=script, wait=False)
    healthy.wait_until_it_trains()
    slow.wait_until_it_trains()
    done = rankscope("diagnose", "--no-history", "--json", "--window", "5", "--job", script.name)
    found = json.loads(done.stdout)
    assert (done.returncode, found["status"], found["job"]) == (1, "fault", slow.name), done.stdout
    assert found["suspects"][0]["function"]["name"] == "tokenize"
    assert [other["job"] for other in found["other_jobs"]] == [healthy.name]
    assert found["other_jobs"][0]["suspects"] == []


def test_a_job_that_is_started_again_in_the_window_is_told_so(torchrun: Torchrun) -> None:
    job = torchrun("60", restarts=3)
    before = job.ranks()
    observer = begun("diagnose", "--no-history", "--json", "--window", "12", "--job", job.name)
    os.kill(before[1], signal.SIGKILL)
    said, _ = observer.communicate(timeout=60)
    verdict = json.loads(said)
    assert (verdict["status"], verdict["suspects"][0]["cause"], verdict["suspects"][0]["ranks"]) == (
        "hang",
        "exited",
        [1],
    )
    assert any("started again while observed" in note for note in verdict["notes"]), (
        verdict["notes"],
        before,
        job.ranks(),
    )
    assert not set(before) & set(job.ranks())


def test_ranks_that_do_not_come_to_a_step_are_told_by_function_and_by_what_they_wait_for(
    torchrun: Torchrun, slow_server: int, tmp_path: Path
) -> None:
    lock = tmp_path / "cache.lock"
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        script = Path(__file__).with_name("starting_job.py")
        job = torchrun(str(lock), f"http://127.0.0.1:{slow_server}/weights", ranks=3, script=script)
        time.sleep(2.0)
        done = rankscope("diagnose", "--no-history", "--json", "--window", "5", "--job", job.name)
    verdict = json.loads(done.stdout)
    assert (verdict["status"], verdict["suspects"], done.returncode) == ("unknown", [], 3)
    text = verdict["notes"][0]
    holder = f"held by {Path(f'/proc/{os.getpid()}/comm').read_text().strip()} (pid {os.getpid()})"
    assert "rank 0 waits in open_cache (starting_job.py:" in text and f"file lock, {lock}, {holder}" in text, text
    assert "rank 1 waits in fetch_weights (starting_job.py:" in text, text
    assert f"a socket to 127.0.0.1:{slow_server}" in text, text
    assert "rank 2 waits in build_extension (starting_job.py:" in text and "for child g++" in text, text
    assert "; the job was started " in text


def test_a_rank_that_ended_before_anybody_looked_is_named_and_one_that_was_not_asked_for_is_not(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    order, script = tmp_path / "now", Path(__file__).with_name("lost_job.py")
    job = torchrun(str(order), ranks=4, script=script, wait=False)
    wait_for(lambda: sum(map(waits_for_the_store, job.ranks())) == 3)
    others = [one for place, pid in enumerate(job.ranks()) if place != 2 for one in ("--pid", str(pid))]
    asked = json.loads(rankscope("diagnose", "--no-history", "--json", "--window", "4", *others).stdout)
    assert asked["suspects"] == [], asked

    # WHEN it ends, and its launcher does not see it
    os.kill(job.launcher.pid, signal.SIGSTOP)
    order.touch()
    wait_for(lambda: psutil.Process(job.ranks()[2]).status() == psutil.STATUS_ZOMBIE)
    done = rankscope("diagnose", "--no-history", "--json", "--window", "4", "--job", job.name)

    verdict = json.loads(done.stdout)
    assert (verdict["status"], done.returncode) == ("hang", 2), verdict
    (suspect,) = verdict["suspects"]
    assert (suspect["component"], suspect["cause"], suspect["ranks"]) == ("process", "exited", [2])


@pytest.mark.parametrize("program, what", [
    (("-m", "http.server", "0"), "it is a server"),
    (("-c", "import numpy, time; time.sleep(60)"), "numpy alone"),
    (("-c", "import torch, time; time.sleep(60)"), "it works alone"),
])  # fmt: skip
def test_a_program_that_does_not_train_is_told_as_what_it_is(program: tuple[str, ...], what: str) -> None:
    other = subprocess.Popen([sys.executable, *program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        said = ""
        deadline = time.monotonic() + 30
        while what not in said and time.monotonic() < deadline:
            time.sleep(0.5)
            listed = json.loads(rankscope("ranks", "--json").stdout)
            assert other.pid not in {rank["pid"] for rank in listed["ranks"]}
            said = next((one["reason"] for one in listed["rejected"] if one["pid"] == other.pid), "")
        assert what in said
    finally:
        other.kill()
        other.wait()
