"""The child that opens files of targets is alone with them: what it holds, what it may, and what it waits for."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.probes.confine import credentials
from rankscope.probes.mapped import reader
from rankscope.probes.mapped.child import MEMORY_BYTES, READ, REPLY, REQUEST

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
MOST_KEPT = 64


class Child:
    """One that has begun: it has answered."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self._channel = pid, channel
        channel.settimeout(10)
        assert self.read(1) == errno.EBADF

    def read(self, handle: int, path: Path | None = None) -> int:
        """The errno of a byte's reading, of a file that it is given."""
        passed = [] if path is None else [os.open(path, os.O_PATH)]
        try:
            socket.send_fds(self._channel, [REQUEST.pack(READ, 0, 0, handle, 0, 1)], passed)
            return int(REPLY.unpack(self._channel.recv(REPLY.size))[0])
        finally:
            for one in passed:
                os.close(one)

    def open(self) -> dict[int, str]:
        """What it has open."""
        return {int(one.name): str(one.readlink()) for one in Path(f"/proc/{self.pid}/fd").iterdir()}

    def status(self) -> dict[str, str]:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    # GIVEN a command that holds a file which children get, is told of modules by its environment, and may write core dumps
    (tmp_path / "ours").touch()
    ours = os.open(tmp_path / "ours", os.O_RDWR)
    os.set_inheritable(ours, True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    pid, channel, shared = reader.start_child()
    try:
        with channel:
            yield Child(pid, channel)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
        os.close(shared)
        os.close(ours)
        reader.end_child(pid, kill=True)


def test_it_holds_its_socket_and_its_memory_and_nothing_of_ours(child: Child) -> None:
    held = child.open()
    assert {number: held[number] for number in (0, 1, 2)} == dict.fromkeys((0, 1, 2), "/dev/null")
    assert held[3].startswith("socket:")
    assert 4 in held and all("memfd:rankscope" in name for number, name in held.items() if number > 3), held
    assert MEMORY_BYTES == 1 << 20
    words = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")
    assert words[1:3] == [b"-I", b"-S"]
    assert Path(f"/proc/{child.pid}/environ").read_bytes() == b"LC_ALL=C\0"


def test_it_has_three_capabilities_and_can_get_no_more(child: Child) -> None:
    status = child.status()
    kept = int(status["CapPrm"], 16)
    may = (
        credentials.CAP_DAC_READ_SEARCH, credentials.CAP_SYS_PTRACE, credentials.CAP_CHECKPOINT_RESTORE, credentials.CAP_SYS_ADMIN,
    )  # fmt: skip
    assert kept.bit_count() <= 3 and kept & ~credentials.mask(may) == 0
    assert int(status["CapEff"], 16) == kept and int(status["CapBnd"], 16) == kept
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == ("2" if credentials.can_filter() else "0")


def test_what_it_reads_goes_into_no_core_dump_and_ctrl_c_is_not_for_it(child: Child) -> None:
    assert resource.prlimit(child.pid, resource.RLIMIT_CORE) == (0, 0)
    assert int(child.status()["SigIgn"], 16) >> (signal.SIGINT - 1) & 1


def test_it_keeps_only_so_many_files_open(child: Child, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for handle in range(MOST_KEPT + 20):
        assert child.read(handle, tmp_path / "file") == 0
    assert child.read(0) == errno.EBADF and child.read(MOST_KEPT + 19) == 0
    assert list(child.open().values()).count(str(tmp_path / "file")) == MOST_KEPT


def test_it_waits_for_no_lease_that_the_owner_of_a_file_holds(child: Child, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    usual = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel asks for a lease back
    try:
        with (tmp_path / "file").open("rb+") as leased:
            try:
                fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                pytest.skip(f"no leases here: {error.strerror}")
            assert child.read(1, tmp_path / "file") == errno.EWOULDBLOCK
    finally:
        signal.signal(signal.SIGIO, usual)
