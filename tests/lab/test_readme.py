"""The README's commands that look at a live host, beside a job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from labsupport import REPOSITORY, RunningJob, rankscope

Torchrun = Callable[..., RunningJob]
LIVE = ("diagnose", "record", "doctor", "ranks", "causes", "sweep", "blackbox", "top")
# What is observed decides; nobody watches here.
GOOD = {"diagnose": (0, 1, 3), "sweep": (0, 1, 2, 3), "blackbox": (0, 65)}


def live_commands() -> list[list[str]]:
    text = (REPOSITORY / "README.md").read_text()
    typed = re.findall(r"^    (?:\.venv/bin/)?rankscope (.*?)\s*(?:#.*)?$", text, re.MULTILINE)
    words = [shlex.split(command) for command in (*typed, *re.findall(r"`rankscope ([^`]+)`", text))]
    kept = []
    for one in words:
        reads = any(
            word.startswith(("DIR", "s3:", "case.")) for word in one[1:] if word != one[-1] or "--out" not in one
        )
        if one[0] in LIVE and not reads and "--baseline" not in one and one not in kept:
            kept.append(one)
    return kept


def test_what_the_readme_says_of_a_live_host_can_be_typed(torchrun: Torchrun, tmp_path: Path) -> None:
    torchrun("240")
    tmp_path.chmod(0o700)
    found = live_commands()
    assert {words[0] for words in found} == set(LIVE)
    for words in found:
        command = [word.replace("s3://bucket/windows", (tmp_path / "store").as_uri()) for word in words]
        command = [str(tmp_path / "DIR") if word == "DIR" else word for word in command]
        if command[0] in ("diagnose", "record", "top"):
            command += ["--window", "2"]
        if command[0] == "diagnose":
            command += ["--history", str(tmp_path / "history")]
        if command[0] == "record":
            command += ["--spool", str(tmp_path / "spool")]
        if command[0] == "blackbox":
            command += ["--state", str(tmp_path / "state")]
        if command[0] == "top":
            command += ["--updates", "1", "--state", str(tmp_path / "state")]
        done = rankscope(*command)
        assert done.returncode in GOOD.get(command[0], (0,)), (command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
