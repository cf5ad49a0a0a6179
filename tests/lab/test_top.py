"""`rankscope top` beside a real job: on a terminal, in a pipe, and on a host that the service watches."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from labsupport import PLAIN_JOB, RANKSCOPE, RunningJob, rankscope, started_jobs

pytestmark = pytest.mark.beside

Torchrun = Callable[..., RunningJob]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def _unix(update: dict[str, str]) -> float:
    return datetime.fromisoformat(update["time"].replace("Z", "+00:00")).timestamp()


def on_a_terminal(*arguments: str, columns: int, seconds: float, until: str) -> tuple[str, int]:
    """What the command draws until it has drawn `until`; then it is told to end. With its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "30"}
    running = subprocess.Popen(
        [RANKSCOPE, *arguments], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    drawn, deadline = b"", time.monotonic() + seconds
    with contextlib.suppress(OSError):  # the other end is closed: it has ended
        while time.monotonic() < deadline and until not in ESCAPES.sub("", drawn.decode(errors="replace")):
            if select.select([ours], [], [], 1.0)[0]:
                drawn += os.read(ours, 1 << 16)
    running.send_signal(signal.SIGTERM)
    with contextlib.suppress(OSError):
        while select.select([ours], [], [], 10.0)[0] and (more := os.read(ours, 1 << 16)):
            drawn += more
    code = running.wait(timeout=30)
    os.close(ours)
    assert running.stderr is not None
    return drawn.decode(errors="replace") + running.stderr.read().decode(), code


def test_on_a_host_that_is_watched_it_reads_what_the_service_writes(torchrun: Torchrun, tmp_path: Path) -> None:
    script = tmp_path / "watched_job.py"  # other tests have jobs of their own
    shutil.copy(PLAIN_JOB, script)
    mine = torchrun("120", script=script)
    tmp_path.chmod(0o700)
    folders = ["--state", str(tmp_path / "state")]
    service = subprocess.Popen(
        [RANKSCOPE, "watch", "--no-routine", *folders, "--history", str(tmp_path / "history")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert service.stdout is not None
        assert any("a step takes" in line and str(mine.port) in line for line in service.stdout)
        time.sleep(6)
        done = rankscope("top", *folders, "--updates", "1", "--json")
        (snapshot,) = map(json.loads, done.stdout.splitlines())
        (job,) = [one for one in snapshot["jobs"] if script.name in one["title"]]
        assert snapshot["source"] == "from rankscope watch" and "probes" not in done.stderr
        assert len(job["ranks"]) == 2 and job["usual_s"] > 0 and len(job["steps_s"]) > 3
        assert all(rank["parts"] for rank in job["ranks"])
    finally:
        service.terminate()
        service.wait(timeout=30)


@pytest.fixture(scope="module")
def slow_job() -> Iterator[RunningJob]:
    """Both tests that follow only look at it."""
    with started_jobs() as start:
        yield start("600", "1")


def test_a_slow_rank_is_seen_on_a_terminal_that_is_given_back(slow_job: RunningJob) -> None:
    drawn, code = on_a_terminal("top", "--job", slow_job.name, columns=100, seconds=60, until="◄")
    assert code == 0, drawn
    assert "\x1b[?1049h" in drawn and "\x1b[?1049l" in drawn, "the screen is another one, and the old one comes back"
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l"), "and so does the cursor"
    told = ESCAPES.sub("", drawn)
    assert "where its time goes" in told and "Traceback" not in told
    assert re.search(r"\b1 █.*tokenize.*◄", told), told


def test_in_a_pipe_it_writes_lines_with_probes_that_are_loaded_once(slow_job: RunningJob) -> None:
    done = rankscope("top", "--job", slow_job.name, "--updates", "2", "--window", "4", "--json")
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert done.stderr.count("loading kernel probes") == 1
    assert 3.5 < _unix(second) - _unix(first) < 15
    assert [rank["number"] for rank in second["jobs"][0]["ranks"]] == [0, 1]
    assert second["jobs"][0]["steps_s"][: len(first["jobs"][0]["steps_s"])] == first["jobs"][0]["steps_s"]
