"""Whose a connection is, is read from the open files of processes, of which a job may have millions; nobody empties the ring meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

import pytest

from rankscope.probes.host.procfs import open_files, socket_inodes
from rankscope.probes.network import flows
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
        assert any("not all of its connections are followed" in note for note in tracker.notes)


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
        assert [note for note in tracker.notes if "more connections than are followed" in note]
        tracker.begin()
        assert len(tracker.summaries()) == 20, "a new window has room again"
