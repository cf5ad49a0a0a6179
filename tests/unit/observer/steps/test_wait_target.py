"""What a rank waits for when its window ends: the file, the socket or the child process, and its pattern says so."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from pace import pace_s

from rankscope.observer.finish import raw
from rankscope.observer.finish.wait_target import WaitReadings, wait_target
from rankscope.observer.tables.rank import find_rank
from rankscope.observer.tables.raw import OpenAbsence, RawProcess
from rankscope.observer.thread.functions import StackName
from rankscope.observer.window.schema import ENDED
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.table import CALL_TABLE

FLOCK, READ, RECV, WAIT4, FUTEX, OPENAT, POLL = 73, 0, 45, 61, 202, 257, 7
PID = 4000


def child(root: Path, pid: int, name: str, state: str) -> None:
    """A process, as the kernel tells of it."""
    (root / "proc" / str(pid)).mkdir()
    (root / "proc" / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {PID} " + "0 " * 49)
    (root / "proc" / str(pid) / "comm").write_text(f"{name}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A process with a file, a socket and a pipe, that runs two compilers."""
    process = tmp_path / "proc" / str(PID)
    (process / "fd").mkdir(parents=True)
    (process / "net").mkdir()
    (process / "net" / "tcp").write_text(
        "  sl  local_address rem_address   st\n"
        "   0: 0500000A:9C42 0700000A:01BB 01 00000000:00000000 00:00000000 00000000  0  0 79 1 0 20 4 30 10 -1\n"
    )
    (process / "net" / "tcp6").write_text(
        "  sl  local_address rem_address   st\n   0: 000080FE000000000000000001000000:9C42 "
        "000080FE000000000000000002000000:0050 01 0:0 00:0 0  0  0 80 1 0 20 4 30 10 -1\n"
    )
    (process / "fdinfo").mkdir()
    (process / "fdinfo" / "5").write_text("pos:\t0\nflags:\t0100002\nmnt_id:\t28\nino:\t77\n")
    (process / "fdinfo" / "11").write_text("pos:\t0\nflags:\t0100002\nmnt_id:\t28\nino:\t78\n")
    (tmp_path / "proc" / "locks").write_text(
        f"1: -> FLOCK  ADVISORY  WRITE {PID} fe:00:77 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE 4002 fe:00:78 0 EOF\n2: -> FLOCK  ADVISORY  WRITE {PID} fe:00:78 0 EOF\n"
    )
    # What a poll of the descriptors 9 and 6 points at: {int fd; short events, revents}.
    (process / "mem").write_bytes(bytes(64) + struct.pack("<ihhihh", 9, 1, 0, 6, 1, 0))
    for number, target in (
        (5, "/cache/kernel\n.lock"),
        (6, "socket:[77]"),
        (7, "pipe:[78]"),
        (8, "anon_inode:[eventpoll]"),
        (9, "socket:[79]"),
        (10, "socket:[80]"),
        (11, "/cache/held.lock"),
    ):
        (process / "fd" / str(number)).symlink_to(target)
    (process / "task" / str(PID)).mkdir(parents=True)
    (process / "task" / str(PID) / "syscall").write_text("7 0x40 0x2 0x2710 0x0 0x0 0x0 0x7ffd0 0x7f00\n")
    (process / "task" / str(PID) / "children").write_text("4001 4002 4003 4004 ")
    for pid, name in ((4001, "ninja"), (4002, "cc1plus"), (4003, "cc1plus")):  # 4004 is gone
        child(tmp_path, pid, name, "S")
    return tmp_path


@pytest.mark.parametrize(
    ("syscall", "argument", "target"),
    [
        (FLOCK, 5, "/cache/kernel\\n.lock"),
        (FLOCK, 11, "/cache/held.lock, held by cc1plus (pid 4002)"),
        (RECV, 6, "a socket"),
        (RECV, 9, "a socket to 10.0.0.7:443"),
        (RECV, 10, "a socket to [fe80::2]:80"),
        (POLL, 64, "a socket to 10.0.0.7:443"),
        (POLL, 72, ""),  # an earlier poll: what lies there now may mean something else
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
    assert wait_target(PID, PID, syscall, argument, WaitReadings(root)) == target


def test_a_child_that_has_ended_and_that_nobody_has_waited_for_is_told_first(root: Path) -> None:
    child(root, 4004, "worker", "Z")
    assert wait_target(PID, PID, READ, 7, WaitReadings(root)) == f"a pipe, child worker {ENDED}, ninja, cc1plus"


def test_hundreds_of_threads_that_wait_read_what_they_share_once(root: Path) -> None:
    """The table has a line for each connection of the namespace; of a window it is read once, whoever has a hundred thousand."""
    table = root / f"proc/{PID}/net/tcp"
    line = "   0: 0100007F:1F90 0100007F:{:04X} 01 0:0 00:0 0  0  0 {} 1 0 20 4 30 10 -1\n"
    table.write_text(table.read_text() + "".join(line.format(one & 0xFFFF, one) for one in range(1000, 101_000)))
    (root / "proc/locks").write_text(
        "".join(f"{one}: FLOCK  ADVISORY  WRITE 4002 fe:00:{one} 0 EOF\n" for one in range(1, 60_000))
    )
    # A dozen paces are taken; a table read for each thread would take hundreds.
    most_s, seen, began = 50 * pace_s(), WaitReadings(root), time.process_time()
    for thread in range(256):
        assert wait_target(PID, thread, RECV, 9, seen) == "a socket to 10.0.0.7:443"
        wait_target(PID, thread, FLOCK, 5, seen)
        wait_target(PID, thread, WAIT4, 0, seen)
    assert time.process_time() - began < most_s


def test_the_connections_of_a_namespace_without_number_are_not_all_read(root: Path) -> None:
    seen, held = WaitReadings(root), 0
    for other in range(5000, 5200):
        (root / f"proc/{other}/net").mkdir(parents=True)
        (root / f"proc/{other}/net/tcp").write_bytes(b"x" * (4 << 20))
        held += len(seen.connections(other))
    assert held == 0 and seen._fair.left(lambda: "another user") > 1 << 20
    assert seen.notes == ["user -1: in the network of pid 5015 are more connections than were examined"]


def test_of_a_process_that_ended_nothing_is_known(tmp_path: Path) -> None:
    assert (
        wait_target(PID, PID, FLOCK, 5, WaitReadings(tmp_path))
        == wait_target(PID, PID, WAIT4, 0, WaitReadings(tmp_path))
        == ""
    )


def targets(
    events: Events,
    still: OpenAbsence | None,
    start_ns: int,
    window_s: float,
    monkeypatch: pytest.MonkeyPatch,
    early: bool = False,
) -> dict[tuple[int, int, int], str]:
    """What the end of a window finds out, where whatever is asked for is a lock."""
    monkeypatch.setattr(raw, "wait_target", lambda *_: "/cache/a.lock")
    last = MagicMock(start_ns=start_ns, window_s=window_s, early=early)
    return raw.targets_of(PID, frozenset({PID}), events, {PID: still} if still else {}, last)


@pytest.mark.parametrize(("since_s", "told"), [(-3.0, "/cache/a.lock"), (2.0, "/cache/a.lock"), (8.0, "")])
def test_a_wait_of_half_the_window_says_what_it_waits_for(
    since_s: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a main thread that is blocked in flock since before the window, since its first half, or since a moment ago
    window_s, start_ns = 10.0, 10**12
    frame = StackFrame("load_checkpoint", "/srv/job/utils.py", 12)
    away = OpenAbsence(PID, int(start_ns + since_s * 1e9), 0, 1, FLOCK, 5, 3)
    stacks, nothing = {3: StackName(*frame, (frame,))}, np.empty(0, ring.EVENT)
    one = RawProcess(
        PID, start_ns, window_s, nothing, {PID: away}, [], frozenset({PID}), stacks, {}, 0.0, 99.0,
        targets=targets(nothing, away, start_ns, window_s, monkeypatch),
    )  # fmt: skip

    # WHEN its patterns are measured
    found = find_rank(one, CALL_TABLE)

    # THEN the lock's path is there where the wait is long enough to be one by itself
    waits = [each for each in found.training if each.function.name == "file lock"]
    assert [(each.function.kind, each.function.detail, each.function.caller) for each in waits] == [
        ("io", told, "load_checkpoint")
    ]
    assert waits[0].total_s == pytest.approx(min(window_s, window_s - since_s))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_where_a_window_ended_early_a_wait_that_is_over_may_be_for_anything_by_now(
    early: bool, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    window_s, start_ns = 10.0, 10**12
    events = np.zeros(1, ring.EVENT)
    events["type"], events["tgid"], events["tid"], events["what"], events["arg"] = ring.OFFCPU, PID, PID, FLOCK, 5
    events["ts_ns"], events["dur_ns"] = start_ns, int(9.5e9)
    still = OpenAbsence(PID, int(start_ns + 9.6e9), 0, 1, FLOCK, 5, 3) if goes_on else None
    found = targets(events, still, start_ns, window_s, monkeypatch, early)
    assert found == ({} if early and not goes_on else {(PID, FLOCK, 5): "/cache/a.lock"})


@pytest.mark.parametrize(("until_s", "told"), [(10.0, "/cache/a.lock"), (8.0, "")])
def test_a_download_that_wakes_the_thread_again_and_again_is_one_wait_where_no_step_is_seen(
    until_s: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a main thread that is blocked in recv for half a second, again and again, until the end or until a while before it
    window_s, start_ns = 10.0, 10**12
    frame = StackFrame("fetch", "/srv/job/utils.py", 12)
    events = np.zeros(int(until_s / 0.5), ring.EVENT)
    events["type"], events["tgid"], events["tid"], events["what"], events["arg"] = ring.OFFCPU, PID, PID, RECV, 9
    events["ts_ns"] = start_ns + np.arange(len(events)) * int(0.5e9)
    events["dur_ns"], events["aux"], events["stack"] = int(0.49e9), 1, 3
    stacks = {3: StackName(*frame, (frame,))}
    one = RawProcess(
        PID, start_ns, window_s, events, {}, [], frozenset({PID}), stacks, {}, 0.0, 99.0,
        targets=targets(events, None, start_ns, window_s, monkeypatch),
    )  # fmt: skip

    # THEN it is told where the socket leads to, but not by a descriptor that may be another's by now
    waits = [each for each in find_rank(one, CALL_TABLE).training if each.function.name == "recv"]
    assert [each.function.detail for each in waits] == [told]
