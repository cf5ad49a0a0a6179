"""Little memory: what needs much is not begun, and says so; nothing waits for ever or ends with a code that means something else."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.probes.base import room

_COMMAND = [sys.executable, "-m", "rankscope.diagnose.face.cli.start"]


def limited_to(megabytes: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    limit = megabytes << 20
    return subprocess.run(
        command, timeout=120, check=False, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip


def test_room_is_told_as_it_is() -> None:
    text = (
        "from rankscope.probes.base import room; print(room.limited(), room.there_is(64 << 20), room.there_is(1 << 30))"
    )
    assert limited_to(400, [sys.executable, "-c", text]).stdout == "True True False\n"
    assert room.there_is(64 << 20)


@pytest.mark.parametrize("megabytes", [40, 60, 80, 90, 100, 110, 120, 130, 140])
def test_a_sweep_without_room_for_its_libraries_is_one_line_and_69(megabytes: int, tmp_path: Path) -> None:
    """At 90 to 110 MB OpenBLAS ended the process with 1, which means a warning."""
    done = limited_to(megabytes, [*_COMMAND, "sweep", "--state", str(tmp_path / "state")])
    assert done.returncode == 69, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "memory" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("megabytes", [170, 190, 230, 300])
def test_a_sweep_with_little_room_ends_in_a_verdict(megabytes: int, tmp_path: Path) -> None:
    """Threads of 8 MB of stack and 64 MB of arena each found none of that here: it ended with 70."""
    done = limited_to(megabytes, [*_COMMAND, "sweep", "--state", str(tmp_path / "state")])
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert "checks in" in done.stdout


@pytest.mark.parametrize("megabytes", [150, 200, 250, 300, 350])
def test_a_diagnosis_with_little_room_ends_in_a_verdict_or_one_line(megabytes: int, tmp_path: Path) -> None:
    timings = tmp_path / "timings.csv"
    lines = [f"{rank},{step},f,gpu,{1 + 0.3 * (rank == 2) + 0.001 * step}" for rank in range(4) for step in range(30)]
    timings.write_text("\n".join(["rank,step,function,kind,seconds", *lines, ""]))
    done = limited_to(megabytes, [*_COMMAND, "diagnose", "--steps", str(timings), "--no-history"])
    assert done.returncode in (0, 1, 69), done.stderr
    if done.returncode == 69:
        assert len(done.stderr.splitlines()) == 1 and "memory" in done.stderr
    else:
        assert done.stdout


def test_nothing_is_changed_where_memory_is_not_limited() -> None:
    text = (
        "from rankscope.diagnose.face.cli import start; import os, sys, threading; start.make_room(); "
        "print(threading.stack_size(), 'ARROW_DEFAULT_MEMORY_POOL' in os.environ)"
    )
    bare = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, env=bare)
    assert done.stdout == "0 False\n"


def test_a_check_that_gets_no_thread_is_unknown_and_says_why() -> None:
    # GIVEN a user who may have one thread more; root may have as many as he likes
    text = (
        "import os, resource; from rankscope.diagnose.sweep.config import Config; from rankscope.diagnose.sweep.context import Earlier; "
        "from rankscope.diagnose.sweep.engine import sweep; from rankscope.diagnose.sweep.registry import all_checks; "
        "checks = all_checks(); "
        "os.geteuid() or os.setresuid(54321, 54321, 54321); resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)); "
        "done = sweep(checks, Config(), Earlier()); "
        "print(done.state, {(one.state, one.why) for one in done.findings})"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120)
    # THEN the sweep ends, and says so of each
    assert done.stdout == "unknown {('unknown', 'no thread could be started for this check')}\n", done.stderr
