"""Whose a connection is, is read from the open files of processes, of which a job may have millions; nobody empties the ring meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rankscope.probes.host.procfs import open_files, socket_inodes
from rankscope.probes.network import flows, inet_diag, netlink
from rankscope.probes.network.flows import OWNERS_EACH, OWNERS_FREELY, FlowTracker
from rankscope.probes.network.interfaces import Interface, InterfaceCounters, Interfaces

FILES = 12_000


def process(root: Path, pid: int, uid: int, files: Path) -> int:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "fd").symlink_to(files)
    (folder / "status").write_text(f"Name:\tx\nState:\tS (x)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t1\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
                                   f"NSpid:\t{pid}\nThreads:\t1\nCpus_allowed_list:\t0\n")  # fmt: skip
    return pid


def test_processes_with_files_without_number_keep_no_sample_waiting_and_hide_no_others(tmp_path: Path) -> None:
    many, few = tmp_path / "many", tmp_path / "few"
    for folder, count, first in ((many, FILES, 10_000_000), (few, 100, 100)):
        folder.mkdir()
        for number in range(count):
            (folder / str(number)).symlink_to(f"socket:[{first + number}]")
    crowd = [process(tmp_path, 1000 + number, 1666, many) for number in range(100)]
    mine = process(tmp_path, 9000, 1000, few)
    with FlowTracker([], tmp_path) as tracker:
        began = time.process_time()
        owners = tracker._read_owners([*crowd, mine])
        took = time.process_time() - began
        assert [owners.get(inode) for inode in range(100, 200)] == [mine] * 100
        assert took < 100 * (OWNERS_FREELY + 2 * OWNERS_EACH) * 1e-6, f"{took:.1f} s"
        assert any("some of its connections are missing" in note for note in tracker.notes)


def test_of_open_files_so_many_are_read_as_are_wanted(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(10):
        (files / str(number)).symlink_to("socket:[7]" if number % 2 else "/dev/null")
    pid = process(tmp_path, 77, 0, files)
    assert len(open_files(pid, tmp_path)) == 10 and len(open_files(pid, tmp_path, 4)) == 4
    assert socket_inodes(pid, tmp_path) == {7}


def test_which_interface_has_an_address_is_looked_up_however_many_there_are() -> None:
    """Whoever makes a network namespace gives it as many addresses as he likes, and connections."""
    addresses = tuple(f"fd00::{number:x}" for number in range(100_000))
    one = Interface(1, "dummy0", 1500, "up", 0.0, addresses, InterfaceCounters("dummy0", *[0] * 8))
    began = time.process_time()
    carriers = Interfaces(1, 0.0, (one,), ()).carriers()
    assert {carriers.carrying(f"[{address}]:29500") for address in addresses[-5000:]} == {"dummy0"}
    assert time.process_time() - began < 2


def test_so_many_connections_of_all_namespaces_together_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(flows, "CONNECTIONS_EACH", 5)
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        for _ in range(20):
            held.enter_context(socket.create_connection(server.getsockname()))
            held.enter_context(server.accept()[0])
        tracker = held.enter_context(FlowTracker([os.getpid()]))
        tracker.begin()
        tracker.sample()
        assert len(tracker.summaries()) == 20
        assert [note for note in tracker.notes if "more connections than can be followed" in note]
        tracker.begin()
        assert len(tracker.summaries()) == 20, "a new window has room again"


# ---- connections without number ---------------------------------------------------------------------------------------


def connection(cookie: int, inode: int, sent_bytes: int = 0) -> netlink.Message:
    """As the kernel tells of it."""
    payload = struct.pack(
        "=BBBB2s2s16s16sIQIIIII", socket.AF_INET, inet_diag.ESTABLISHED, 0, 0, b"sH", b"\0\7", bytes([10, 0, 0, 1] + [0] * 12),
        bytes([10, 0, 0, 2] + [0] * 12), 0, cookie, 0, 0, 0, 0, inode,
    )  # fmt: skip
    info = bytearray(232)
    struct.pack_into("=Q", info, 120, sent_bytes)  # tcpi_bytes_acked
    return netlink.Message(
        20, 1, memoryview(payload + struct.pack("=HH", 4 + len(info), inet_diag.INET_DIAG_INFO) + info)
    )


def tracker_of(
    root: Path, monkeypatch: pytest.MonkeyPatch, answers: Sequence[netlink.Answer | OSError]
) -> tuple[FlowTracker, list[int]]:
    """One that follows a process with the socket 7 and is answered so; and, for each channel that it opened, for whom."""
    files = root / "files"
    files.mkdir()
    (files / "3").symlink_to("socket:[7]")
    pid, coming, opened = process(root, 77, 1000, files), iter(answers), list[int]()

    def answer(_: object) -> netlink.Answer:
        found = next(coming)
        if isinstance(found, OSError):
            raise found
        return found

    def channel(_: int, pid: int, root: Path) -> Any:
        opened.append(pid)
        return contextlib.ExitStack()

    monkeypatch.setattr(flows, "connections_of", answer)
    monkeypatch.setattr(netlink, "open_netlink", channel)
    tracker = FlowTracker([], root)
    tracker._namespaces.append(
        flows._Namespace(1, [pid], cast(Any, contextlib.ExitStack()), Interfaces(pid, 0.0, (), ()))
    )
    return tracker, opened


MINE, OTHER = connection(1, 7, 10**13), connection(2, 8)


@pytest.mark.parametrize(
    ("first", "sent_bytes"),
    [
        (netlink.Answer([OTHER]), 10**13),
        (netlink.Answer([OTHER], whole=False), 0),
        (OSError(errno.ENOBUFS, "no room"), 0),
    ],
)
def test_a_connection_that_the_first_look_may_have_missed_counts_from_when_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: netlink.Answer | OSError, sent_bytes: int
) -> None:
    """Somebody else has more of them than are read: what was sent before the window is not sent in it."""
    tracker, _ = tracker_of(tmp_path, monkeypatch, [first, netlink.Answer([OTHER, MINE])])
    with tracker:
        tracker.begin()
        tracker._namespaces[0].owners_due_s = 0.0
        tracker.sample()
        assert [flow.sent_bytes for flow in tracker.summaries()] == [sent_bytes]


def test_that_not_all_connections_are_read_is_told_and_the_kernel_is_asked_on_another_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    answers = [netlink.Answer([MINE]), netlink.Answer([MINE], whole=False), busy, netlink.Answer([MINE])]
    tracker, opened = tracker_of(tmp_path, monkeypatch, answers)
    with tracker:
        tracker.begin()
        assert opened == [] and not any("connections" in note for note in tracker.notes)
        tracker.sample()
        assert opened == [77] and any("more connections than are read" in note for note in tracker.notes)
        tracker.sample()
        assert opened == [77, 77]
        tracker.sample()
        assert opened == [77, 77] and len(tracker.summaries()) == 1


def test_connections_of_others_are_forgotten_when_they_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [netlink.Answer([connection(100 * at + n, 1000) for n in range(100)]) for at in range(20)]
    tracker, _ = tracker_of(tmp_path, monkeypatch, answers)
    with tracker:
        tracker.begin()
        for _ in answers[1:]:
            tracker._namespaces[0].owners_due_s = 0.0
            tracker.sample()
        assert len(tracker._namespaces[0].foreign) <= 100


def test_after_an_answer_that_is_cut_all_connections_are_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel goes on with an answer that was not read to its end, and refuses the next question meanwhile."""
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200))
        for _ in range(150):
            held.enter_context(socket.create_connection(server.getsockname()))
            held.enter_context(server.accept()[0])
        tracker = held.enter_context(FlowTracker([os.getpid()]))
        port = f":{server.getsockname()[1]}"

        def seen() -> int:  # this process may have others, of other tests
            return sum(port in (one.local[-len(port) :], one.peer[-len(port) :]) for one in tracker.summaries())

        monkeypatch.setattr(netlink, "ANSWER_CAP", 1)
        tracker.begin()
        assert seen() < 300
        monkeypatch.setattr(netlink, "ANSWER_CAP", 1 << 24)
        tracker._namespaces[0].owners_due_s = 0.0
        tracker.sample()
        assert seen() == 300
