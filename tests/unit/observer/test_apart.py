"""The process that observes has given its rights up: what it cannot do, how it ends, and that nothing of it stays."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confined_work import Say, opened, said, tried, tried_inside, window
from without_root import PYTHON

from rankscope.observer.apart import confined, devices, memory_cap, run, windows, wire
from rankscope.observer.apart.broker import Broker
from rankscope.observer.apart.reading import Reading
from rankscope.observer.apart.run import ObserverEnded, OutOfMemory
from rankscope.observer.apart.windows import windows_of
from rankscope.observer.live import limits
from rankscope.observer.window.folder import Window
from rankscope.observer.window.schema import TABLES
from rankscope.probes.base import rights
from rankscope.probes.base.errors import BadData, NoRanks
from rankscope.probes.calls.row import MAX_PLACES
from rankscope.probes.confine import credentials
from rankscope.probes.host import namespaces
from rankscope.probes.host.kmsg import read_kmsg
from rankscope.probes.mapped.reader import READER
from rankscope.probes.nccl import ras
from rankscope.probes.network import ethtool, netlink
from rankscope.probes.network.interfaces import read_interfaces
from rankscope.unwinder.interpreter.memory import ProcessMemory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")


def test_it_has_two_capabilities_another_user_and_a_filter() -> None:
    def tell(say: Say) -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            say(" ".join(line.split()))

    fields = dict(line.partition(": ")[::2] for line in said(tell))
    left = credentials.mask(confined.KEPT)
    assert [int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")] == [left, left, 0, 0]
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert len(set(fields["Uid"].split())) == 1 and int(fields["Uid"].split()[0]) > 1_000_000_000
    assert fields.get("Groups", "").split() == [str(one) for one in devices.groups(devices.present())]
    # The kernel loads and attaches for this one no more; the one that is asked has kept its rights.
    assert rights.delegate() is None and credentials.effective() != left


def test_it_can_change_nothing_and_start_nothing(tmp_path: Path) -> None:
    victim, known = subprocess.Popen(["sleep", "60"]), tmp_path / "known"
    known.write_text("as it was")
    try:
        came = tried(
            {
                "a new file": lambda: (tmp_path / "new").write_text("x"),
                "a file of root's": lambda: opened(str(known), os.O_RDWR),
                "memory of a process": lambda: opened(f"/proc/{victim.pid}/mem", os.O_RDWR),
                "a priority": lambda: opened(f"/proc/{victim.pid}/oom_score_adj", os.O_RDWR),
                "a signal": lambda: os.kill(victim.pid, signal.SIGKILL),
                "its parent": lambda: os.kill(os.getppid(), signal.SIGKILL),
                "a process": os.fork,
                "a program": lambda: os.execv("/bin/true", ["true"]),
                "a network": socket.socket,
                "a folder": (tmp_path / "folder").mkdir,
                "a name": lambda: known.rename(tmp_path / "another"),
                "root": lambda: os.setuid(0),
                "a namespace": lambda: os.unshare(0x20000000) if hasattr(os, "unshare") else os.fork(),
            }
        )
    finally:
        victim.kill()
        victim.wait()
    assert set(came.values()) <= {"1", "13"}, came
    assert len(came) == 13 and list(tmp_path.iterdir()) == [known]


def test_where_it_must_stay_root_it_says_so_and_opens_nothing_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(user: int, groups: list[int]) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(credentials, "become", refuse)
    monkeypatch.setattr(devices, "present", list)
    (tmp_path / "file").write_text("as it was")
    lines = said(lambda say: say(tried_inside(lambda: opened(str(tmp_path / "file"), os.O_RDWR))))
    assert lines == ["the observer remains user 0: not permitted", "1"]


def test_it_reads_what_observing_needs() -> None:
    target = subprocess.Popen([*PYTHON, "-c", "import time; time.sleep(60)"], user=1000, group=1000, cwd="/")
    try:
        time.sleep(0.2)
        log, name, cards = (
            (read_kmsg() != ()),
            namespaces.node_name(target.pid),
            len(read_interfaces(target.pid).interfaces),
        )

        def look(say: Say) -> None:
            with ProcessMemory(target.pid) as memory:
                start = int((Path("/proc") / str(target.pid) / "maps").read_text().split("-", 1)[0], 16)
                say(repr(memory.read(start, 4)))
            say(str(read_kmsg() != ()))
            say(namespaces.node_name(target.pid))
            say(str(len(read_interfaces(target.pid).interfaces)))

        assert said(look) == [repr(b"\x7fELF"), str(log), name, str(cards)]
    finally:
        target.kill()
        target.wait()


def test_no_socket_that_it_is_given_reaches_anybody_but_the_kernel() -> None:
    def send(say: Say) -> None:
        for channel in (ethtool.open_channel(), netlink.open_netlink(netlink.NETLINK_SOCK_DIAG)):
            with channel:
                say(f"{channel.family.name}")

    assert said(send) == ["AF_NETLINK", "AF_NETLINK"]


def test_drivers_answer_questions_through_such_a_socket() -> None:
    with ethtool.open_channel() as channel, pytest.raises(OSError) as caught:
        ethtool._ioctl(channel, "rankscope-none", array.array("B", struct.pack("=I40x", ethtool._GSET)))
    assert caught.value.errno == errno.ENODEV  # it was understood, and there is no such interface


def test_a_thread_goes_first_no_further_than_observing_needs() -> None:
    with subprocess.Popen(["sleep", "60"]) as served:
        Broker(served=served.pid).answer({"what": "priority", "tid": served.pid, "nice": -20, "yields_s": 0.0}, ())
        assert os.getpriority(os.PRIO_PROCESS, served.pid) == -10
        served.kill()


def test_no_timer_of_a_thread_that_gives_way_outlives_the_work() -> None:
    with subprocess.Popen(["sleep", "60"]) as served:
        broker = Broker(served=served.pid)
        broker.answer({"what": "priority", "tid": served.pid, "nice": 0, "yields_s": 2.0}, ())
        assert os.sched_getscheduler(served.pid) == os.SCHED_IDLE
        waiting = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
        broker.close()
        served.kill()
    for one in waiting:
        one.join(1.0)
    assert waiting
    assert not any(one.is_alive() for one in waiting)


def test_what_the_server_of_nccl_says_is_fetched_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = _ras_rank(server.getsockname()[1])
        answering = threading.Thread(target=_answer_as_ras, args=(server,))
        answering.start()
        try:
            assert said(lambda say: say(type(ras.ask(target.pid)).__name__)) == ["RasAnswer"]
        finally:
            target.kill()
            target.wait()
            answering.join()


def _ras_rank(port: int) -> subprocess.Popen[bytes]:
    target = subprocess.Popen(["sleep", "60"], env={"NCCL_RAS_ADDR": f"127.0.0.1:{port}"})
    time.sleep(0.2)
    return target


def _answer_as_ras(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rw", encoding="ascii") as lines:
        for answer in ("SERVER PROTOCOL 2", "OK", "OK"):
            lines.readline()
            lines.write(f"{answer}\n")
            lines.flush()
        lines.readline()
        lines.write('{"nccl_version": "2.28.7", "communicators": []}\n')


def test_children_that_read_files_are_buried() -> None:
    def look(say: Say) -> None:
        for _ in range(3):
            with pytest.raises(OSError):
                READER.open("/proc/1/map_files/0-1", "00:01", 1)
            READER.close()

    before = _zombies()  # of tests before this one, which may keep what it needs to bury them
    for _ in range(2):
        said(look)
        time.sleep(0.3)
    said(look)
    assert len(_zombies() - before) <= 3  # of the last look alone, at most


def test_it_gets_only_so_many_children_and_none_of_them_stays() -> None:
    services = Reading(served=os.getpid())
    try:
        for _ in range(8):
            for descriptor in services.answer({"what": "reader"}, ())[1]:
                os.close(descriptor)
        with pytest.raises(ValueError, match="too many"):
            services.answer({"what": "reader"}, ())
        children = tuple(services.readers)
    finally:
        services.close()
    end = time.monotonic() + 5
    while any(_stat(pid)[:1] not in ([], ["Z"]) for pid in children) and time.monotonic() < end:
        time.sleep(0.02)
    assert len(children) == 8 and all(_stat(pid)[:1] in ([], ["Z"]) for pid in children)


def _zombies() -> set[int]:
    processes = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return {pid for pid in processes if _stat(pid)[:2] == ["Z", str(os.getpid())]}


def _stat(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def test_one_that_says_something_for_ever_is_ended() -> None:
    def chatter(say: Say) -> list[Window]:
        while True:
            say("still here")
            time.sleep(0.05)

    began = time.monotonic()
    with pytest.raises(ObserverEnded, match="too long"):
        windows_of(chatter, lambda _: None, longest_s=1)
    assert time.monotonic() - began < 10


def test_windows_come_back_as_they_were() -> None:
    steps = TABLES["steps"]
    rows = pa.table({field.name: pa.array([1, 2], pa.int64()).cast(field.type) for field in steps}, schema=steps)
    made = replace(window("a note"), steps=rows)
    (one, other) = windows_of(lambda say: [made, window("another")], lambda _: None)
    assert one.manifest == made.manifest and one.steps.equals(rows) and one.ranks.schema == TABLES["ranks"]
    assert other.manifest.notes == ("another",)


def test_a_command_without_memory_for_a_window_does_not_call_it_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("rankscope.observer.window.folder.read_table", full)
    with pytest.raises(OutOfMemory):
        windows_of(lambda say: [window("one")], lambda _: None)


def test_what_it_says_steers_no_terminal() -> None:
    assert said(lambda say: say("\x1b[2J")) == ["\\x1b[2J"]


@pytest.mark.parametrize(
    "error",
    [NoRanks("none here"), PermissionError(1, "not permitted"), ValueError("odd")],
    ids=lambda one: type(one).__name__,
)
def test_its_errors_are_the_commands(error: Exception) -> None:
    def fail(say: Say) -> list[Window]:
        raise error

    with pytest.raises(type(error)) as caught:
        windows_of(fail, lambda _: None)
    assert str(caught.value) == str(error)


def test_one_that_is_killed_ends_in_one_line() -> None:
    def wait(say: Say) -> list[Window]:
        say(str(os.getpid()))
        time.sleep(60)
        return []

    with pytest.raises(ObserverEnded, match="SIGKILL"):
        windows_of(wait, lambda pid: os.kill(int(pid), signal.SIGKILL))


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_QUIET_S", 2)
    began = time.monotonic()

    def hang(say: Say) -> list[Window]:
        time.sleep(60)
        return []

    with pytest.raises(ObserverEnded, match="sent nothing for"):
        windows_of(hang, lambda _: None)
    assert time.monotonic() - began < 10


def _groups(pid: int) -> list[Path]:
    """Control groups that a command with this pid has made."""
    version, folders = memory_cap.cgroup.memory_folders(os.getpid())
    found = memory_cap.places(version, folders, limited=False)
    return [group for place in found for group in place.glob(f"rankscope-{pid}-*")]


def test_a_group_is_at_the_top_unless_that_is_outside_of_a_limit() -> None:
    folders = ("/c/a/b", "/c/a", "/c")
    assert memory_cap.places(1, folders, limited=False) == [Path("/c"), Path("/c/a/b")]
    assert memory_cap.places(1, folders, limited=True) == [Path("/c/a/b")]
    assert memory_cap.places(2, folders, limited=False) == [Path("/c"), Path("/c/a")]
    assert memory_cap.places(2, folders, limited=True) == [Path("/c/a")]
    assert memory_cap.places(2, ("/c",), limited=True) == [Path("/c")]


def _eat(say: Say) -> list[Window]:
    return [bytearray(b"x" * (256 << 20)) and window("never")]  # type: ignore[list-item]


def test_one_that_wants_too_much_memory_ends_in_one_line_and_leaves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMORY_BYTES", 64 << 20)
    with pytest.raises(OutOfMemory, match="limit is 64 MB"):
        windows_of(_eat, lambda _: None)
    assert _groups(os.getpid()) == []


def test_where_no_group_can_be_made_the_process_limits_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMORY_BYTES", 64 << 20)
    monkeypatch.setattr(memory_cap, "make", lambda _: None)
    with pytest.raises(OutOfMemory, match="limit is 64 MB"):
        windows_of(_eat, lambda _: None)


RUN = """
import os, sys, time
from rankscope.observer.apart.windows import windows_of
def wait(say):
    say(str(os.getpid()))
    time.sleep(60)
    return []
windows_of(wait, lambda text: print(text, flush=True))
"""


def test_a_command_that_is_killed_takes_the_process_with_it_and_the_next_one_removes_its_group() -> None:
    command = subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    observer = int(command.stdout.readline())
    command.send_signal(signal.SIGKILL)
    command.wait()
    before = _groups(command.pid)
    end = time.monotonic() + 5
    while _alive(observer) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _alive(observer)
    assert windows_of(lambda say: [], lambda _: None) == []
    assert [group for group in before if group.exists()] == []


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    "asked",
    [{"what": "execute"}, {"what": "__init__"}, {"what": "attach", "function": "rs_sample", "offsets": [1], "on_return": False},
     {"what": "attach", "function": "rs_enter_0", "offsets": [-1], "on_return": False},
     {"what": "attach", "function": "rs_enter_0", "offsets": [], "on_return": False},
     {"what": "attach", "function": "rs_enter_0", "offsets": ["/etc"], "on_return": False},
     {"what": "attach", "function": "rs_enter_0", "offsets": [16], "on_return": False, "counters": [[16, 4096]]},
     {"what": "release", "links": ["0"]}, {"what": "socket", "pid": 0, "protocol": 4}, {"what": "socket", "pid": None, "protocol": 16},
     {"what": "socket", "pid": None, "protocol": None}, {"what": "connection", "pid": 1, "host": "127.0.0.1", "port": 22, "timeout_s": 1},
     {"what": "ras", "pid": os.getpid(), "host": "127.0.0.1"},
     {"what": "load", "hz": "99", "ranks": 1, "processes": 1, "threads": 1, "verbose": False},
     {"what": "load", "hz": 1001, "ranks": 1, "processes": 1, "threads": 1, "verbose": False},
     {"what": "pyspy_start", "pid": "1; true", "duration_s": 1, "rate_hz": 19, "idle": False},
     {"what": "priority", "tid": 1, "nice": -10, "yields_s": 0.0}, {"what": "kernel_log", "path": "/etc/shadow"}],
    ids=lambda asked: asked["what"],
)  # fmt: skip
def test_what_the_confined_process_may_not_ask_for_is_refused(asked: dict[str, Any]) -> None:
    broker = Broker(served=os.getpid() + 1)
    handed = os.open("/dev/null", os.O_RDONLY)
    try:
        with pytest.raises((ValueError, TypeError, OSError, KeyError)):
            broker.answer(dict(asked), (handed,))
        assert broker.module is None and not broker.readers and not broker.samplings
    finally:
        os.close(handed)
        broker.close()


@pytest.mark.parametrize("place", [-1, MAX_PLACES, "1", True])
def test_under_no_number_that_is_none_calls_are_counted(place: object) -> None:
    asked = {"what": "attach", "function": "rs_enter_0", "offsets": [1], "on_return": False}
    with pytest.raises(ValueError, match="no such place"):
        Broker(served=os.getpid() + 1).answer({**asked, "place": place}, (0,))


def test_a_window_that_can_still_be_changed_is_refused() -> None:
    unsealable = os.memfd_create("window.json", os.MFD_CLOEXEC)
    try:
        with pytest.raises(BadData, match="can still change"):
            windows.parse_window({"files": ["window.json"]}, [unsealable])
        sealable = os.memfd_create("window.json", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with pytest.raises(BadData, match="JSON"):
            windows.parse_window({"files": ["window.json"]}, [sealable])
        assert fcntl.fcntl(sealable, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
        os.close(sealable)
        with pytest.raises(BadData):
            windows.parse_window({"files": "window.json"}, [unsealable])
    finally:
        os.close(unsealable)


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b"[" * 100_000, b"\xff\xfe"])
def test_what_is_no_message_ends_the_conversation(data: bytes) -> None:
    ours, theirs = wire.pair()
    with ours, theirs:
        if data:
            theirs.send(data)
        else:
            theirs.close()
        with pytest.raises(wire.Ended):
            wire.receive(ours)


def test_descriptors_for_which_there_is_no_room_are_said_and_none_is_kept() -> None:
    ours, theirs = wire.pair()
    with ours, theirs:
        highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        filled = [os.dup(0)]  # all numbers below are taken: what is free is what the limit leaves
        while filled[-1] < highest:
            filled.append(os.dup(0))
        held = [os.dup(0) for _ in range(8)]
        wire.send(theirs, {}, held)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 3, hard))
        try:
            before = set(Path("/proc/self/fd").iterdir())
            with pytest.raises(OSError, match="Too many open files"):
                wire.receive(ours)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert set(Path("/proc/self/fd").iterdir()) == before
        wire.close_all([*filled, *held])


def test_arrows_want_of_memory_is_one() -> None:
    assert type(wire.raised(wire.describe(pa.ArrowMemoryError("x")))) is MemoryError


def test_an_error_of_another_name_is_not_made_into_one_of_ours() -> None:
    assert type(wire.raised({"error": "SystemExit", "text": "0"})) is RuntimeError
    assert type(wire.raised({"error": "BadData", "text": "x"})) is BadData
