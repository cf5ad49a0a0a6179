"""The README's commands that look at a live host, beside a job."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import LIVE, README, of_rankscope
from labsupport import RANKSCOPE, RunningJob, rankscope

# What it types judges every job of its host: one that another test has stopped is a hang.
pytestmark = pytest.mark.apart

Torchrun = Callable[..., RunningJob]
OF_THE_SERVICE = ("watch", "trigger", "ledger")
# What is observed decides; in the first test nobody watches.
GOOD = {"diagnose": (0, 1, 3), "sweep": (0, 1, 2, 3), "blackbox": (0, 65), "trigger": (0, 1, 3)}


def live_commands() -> list[list[str]]:
    kept = []
    for one in of_rankscope(README.read_text()):
        reads = any(
            word.startswith(("DIR", "s3:", "case.")) for word in one[1:] if word != one[-1] or "--out" not in one
        )
        if one[0] in LIVE and not reads and one not in kept:
            kept.append(one)
    return kept


def test_what_the_readme_says_of_a_live_host_can_be_typed(torchrun: Torchrun, tmp_path: Path) -> None:
    torchrun("600")
    tmp_path.chmod(0o700)
    found = [words for words in live_commands() if words[0] not in OF_THE_SERVICE]
    assert {words[0] for words in found} == set(LIVE) - set(OF_THE_SERVICE)
    assert ["diagnose", "--baseline", "auto"] in found
    for words in found:
        command = [str(tmp_path / "DIR") if word == "DIR" else word for word in words]
        if command[0] in ("diagnose", "record", "top"):
            command += ["--window", "2"]
        if command[0] == "diagnose":
            # of all jobs that others may have here one may want a longer look
            command += ["--history", str(tmp_path / "history"), "--at-most", "10"]
        if command[0] == "record":
            command += ["--spool", str(tmp_path / "spool")]
        if command[0] == "sweep":
            command += ["--state", str(tmp_path / "sweep")]
        if command[0] == "blackbox":
            command += ["--state", str(tmp_path / "state")]
            (tmp_path / "state").mkdir(mode=0o700)
        if command[0] == "top":
            command += ["--updates", "1", "--state", str(tmp_path / "state")]
        done = rankscope(*command, timeout=300)
        assert done.returncode in GOOD.get(command[0], (0,)), (command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


def test_the_service_of_the_readme_is_started_asked_and_read(torchrun: Torchrun, tmp_path: Path) -> None:
    job = torchrun("600")
    tmp_path.chmod(0o700)
    typed = {words[0]: words for words in live_commands() if words[0] in OF_THE_SERVICE}
    assert set(typed) == set(OF_THE_SERVICE)
    state = ["--state", str(tmp_path / "state")]
    service = subprocess.Popen(
        [RANKSCOPE, *typed["watch"], *state, "--history", str(tmp_path / "history")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert service.stdout is not None
    try:
        assert any("a step takes" in line and job.name in line for line in service.stdout)
        asked = rankscope(*typed["trigger"], *state, "--job", job.name, timeout=300)  # others may have jobs
        assert asked.returncode in GOOD["trigger"] and job.name in asked.stdout, (asked.stdout, asked.stderr)
    finally:
        service.terminate()
        service.communicate(timeout=60)
    read = rankscope(*typed["ledger"], *state)
    assert read.returncode == 0 and "plain_job.py" in read.stdout, (read.stdout, read.stderr)
