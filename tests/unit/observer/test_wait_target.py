"""What a rank waits for when its window ends: the file, the socket or the child process, and its pattern says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankscope.observer.finish.wait_target import wait_target
from rankscope.observer.tables.rank import find_rank
from rankscope.observer.tables.raw import OpenAbsence, RawProcess
from rankscope.observer.thread.functions import StackName
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE

FLOCK, READ, RECV, WAIT4, FUTEX, OPENAT = 73, 0, 45, 61, 202, 257
PID = 4000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A process with a file, a socket and a pipe, that runs two compilers."""
    process = tmp_path / "proc" / str(PID)
    (process / "fd").mkdir(parents=True)
    for number, target in (
        (5, "/cache/kernel\n.lock"),
        (6, "socket:[77]"),
        (7, "pipe:[78]"),
        (8, "anon_inode:[eventpoll]"),
    ):
        (process / "fd" / str(number)).symlink_to(target)
    (process / "task" / str(PID)).mkdir(parents=True)
    (process / "task" / str(PID) / "children").write_text("4001 4002 4003 4004 ")
    for pid, name in ((4001, "ninja"), (4002, "cc1plus"), (4003, "cc1plus")):  # 4004 has ended
        (tmp_path / "proc" / str(pid)).mkdir()
        (tmp_path / "proc" / str(pid) / "comm").write_text(name + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("syscall", "argument", "target"),
    [
        (FLOCK, 5, "/cache/kernel?.lock"),
        (RECV, 6, "a socket"),
        (READ, 7, "a pipe, child ninja, cc1plus"),
        (WAIT4, -1 & 0xFFFF_FFFF, "child ninja, cc1plus"),
        (READ, 8, ""),
        (READ, 99, ""),
        (READ, -1, ""),
        (FUTEX, 5, ""),
        (OPENAT, 5, ""),  # its first argument is a folder's descriptor, or none
    ],
)
def test_the_target_of_a_call(root: Path, syscall: int, argument: int, target: str) -> None:
    assert wait_target(PID, syscall, argument, root) == target


def test_of_a_process_that_ended_nothing_is_known(tmp_path: Path) -> None:
    assert wait_target(PID, FLOCK, 5, tmp_path) == wait_target(PID, WAIT4, 0, tmp_path) == ""


@pytest.mark.parametrize(("since_s", "told"), [(-3.0, "/cache/a.lock"), (2.0, "/cache/a.lock"), (8.0, "")])
def test_a_wait_of_half_the_window_says_what_it_waits_for(since_s: float, told: str) -> None:
    # GIVEN a main thread that is blocked in flock since before the window, since its first half, or since a moment ago
    window_s, start_ns = 10.0, 10**12
    frame = StackFrame("load_checkpoint", "/srv/job/utils.py", 12)
    away = OpenAbsence(PID, int(start_ns + since_s * 1e9), 0, 1, FLOCK, 5, 3, "/cache/a.lock")
    stacks, nothing = {3: StackName(*frame, (frame,))}, np.empty(0, ring.EVENT)
    raw = RawProcess(PID, start_ns, window_s, nothing, {PID: away}, [], frozenset({PID}), stacks, {}, 0.0, 99.0)

    # WHEN its patterns are measured
    found = find_rank(raw, CALL_TABLE)

    # THEN the lock's path is there where the wait is long enough to be one by itself
    waits = [each for each in found.training if each.function.name == "file lock"]
    assert [(each.function.kind, each.function.detail, each.function.caller) for each in waits] == [
        ("io", told, "load_checkpoint")
    ]
    assert waits[0].total_s == pytest.approx(min(window_s, window_s - since_s))
