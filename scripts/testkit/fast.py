"""`scripts/test --fast`: style, and the unit tests that only compute. No root, no browser, no PyTorch, no other process.

A test file is left out if its source has a word of ASKS_FOR_MORE: it starts processes, asks who it runs as, waits, or needs a browser,
PyTorch or a store. So a new file needs no entry anywhere. Files that compute for long are in LONG.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
# By its file: `-m` also looks into the folder that we are in.
PYTEST = (sys.executable, str(Path(pytest.__file__).with_name("__main__.py")))
UNIT = REPOSITORY / "tests/unit"
ASKS_FOR_MORE = re.compile(
    r"\b(subprocess|multiprocessing|Popen|fork|geteuid|sleep|chromium|import torch|store: str|server: str)\b"
)
QUICK = ("tests/unit/test_house.py",)  # starts git alone, which takes no time
LONG = (  # seconds of CPU
    "tests/unit/diagnose/cli/test_bundle.py",  # 36
    "tests/unit/diagnose/fleet/test_planted_fleets.py",  # 18
    "tests/unit/lab/test_blind_windows.py",  # 14
    "tests/unit/lab/test_corpus_numbers.py",  # 18
    "tests/unit/observer/census/test_costly_crowds.py",  # 16
)
MOST_SESSIONS = 8


def chosen() -> tuple[list[Path], list[Path]]:
    """Test files that run, and unit test files that do not."""
    runs, left = list[Path](), list[Path]()
    for path in sorted(UNIT.rglob("test_*.py")):
        name = str(path.relative_to(REPOSITORY))
        quick = name in QUICK or (name not in LONG and not ASKS_FOR_MORE.search(path.read_text()))
        (runs if quick else left).append(path)
    return runs, left


def shares(files: list[Path], count: int) -> list[list[Path]]:
    """Deal files to `count` sessions, the largest first, each to the session that has least."""
    dealt: list[tuple[int, list[Path]]] = [(0, []) for _ in range(count)]
    for path in sorted(files, key=lambda path: -path.stat().st_size):
        least = min(range(count), key=lambda at: dealt[at][0])
        dealt[least] = dealt[least][0] + path.stat().st_size, [*dealt[least][1], path]
    return [names for _, names in dealt if names]


def left_out(left: list[Path]) -> str:
    return (
        f"left out: {len(left)} files of tests/unit (they start processes, ask for root, a browser or a store, or compute for "
        "long), all of tests/kernel, tests/lab and tests/gpu, types (mypy) and symbols. All of it: scripts/test, as root."
    )


class _Session:
    """One pytest in the background, which writes to a file."""

    def __init__(self, said: Path, command: Sequence[str | Path]) -> None:
        self.said = said
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # which images for containers set
        with said.open("w") as file:
            self.child = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdout=file, stderr=subprocess.STDOUT
            )

    def ended_well(self) -> bool:
        """Wait for the end; print the last line, or everything where a test failed."""
        code, text = self.child.wait(), self.said.read_text().rstrip()
        print(text if code else text.rpartition("\n")[2], flush=True)
        return code == 0


def main() -> int:
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the sessions end with us
    runs, left = chosen()
    sessions = min(len(os.sched_getaffinity(0)), MOST_SESSIONS)
    print(
        f"fast: style, and {len(runs)} of {len(runs) + len(left)} files of unit tests, in {sessions} sessions",
        flush=True,
    )
    failed = [
        command
        for command in (["check", "."], ["format", "--check", "."])
        if subprocess.run([TOOLS / "ruff", *command, "--no-cache", "--quiet"], cwd=REPOSITORY, check=False).returncode
    ]
    command = [*PYTEST, "-q", "-p", "no:cacheprovider", *sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="rankscope-fast-") as folder:
        started = [
            _Session(Path(folder, str(number)), [*command, *files])
            for number, files in enumerate(shares(runs, sessions))
        ]
        try:
            ended = [session.ended_well() for session in started]
        finally:
            for session in started:
                session.child.kill()
    print(left_out(left))
    state = "passed" if all(ended) and not failed else "FAILED"
    print(f"fast: {state} in {time.monotonic() - began:.0f} s{'; style: ruff complains' if failed else ''}")
    return 0 if state == "passed" else 1


if __name__ == "__main__":
    sys.exit(main())
