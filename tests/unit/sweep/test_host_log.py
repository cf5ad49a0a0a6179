"""`sweep --syslog`: what is wrong goes to the log of the host, and whoever reads that keeps no sweep waiting."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from sweep_trees import host, ib

from rankscope.diagnose.face.cli.host import host_log
from rankscope.diagnose.face.cli.main import run as command_line


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the log is read."""
    monkeypatch.setattr(host_log, "PLACE", str(tmp_path / "log"))
    monkeypatch.setattr(host_log, "PATIENCE_S", 0.2)
    return tmp_path / "log"


def listening(place: Path, kind: socket.SocketKind = socket.SOCK_DGRAM) -> socket.socket:
    reader = socket.socket(socket.AF_UNIX, kind)
    reader.bind(str(place))
    return reader


def test_a_log_that_nobody_reads_keeps_no_sweep_waiting(
    tmp_path: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a reader that has stopped, and a queue that is full
    with listening(place), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.connect(str(place))
        others.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                others.send(b"x")
        tree = host(tmp_path / "root", ib("mlx5_0"))
        arguments = ["sweep", "--root", str(tree), "--state", str(tmp_path / "s"), "--only", "ib.port", "--syslog"]
        swept = threading.Thread(target=command_line, args=(arguments,), daemon=True)
        swept.start()
        swept.join(10)
        # THEN the findings are printed, and what was not taken is said
        assert not swept.is_alive()
    said = capfd.readouterr()
    assert "ok: node-7: 1 ok" in said.out
    assert "did not take 1 of 1 lines: nobody reads it" in said.err


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["datagrams", "a stream"])
def test_a_log_that_is_read_slowly_gets_every_line(
    place: Path, kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_log, "PATIENCE_S", 10.0)
    got: list[bytes] = []
    with listening(place, kind) as reader:
        if kind == socket.SOCK_STREAM:
            reader.listen()

        def read() -> None:
            line = reader if kind == socket.SOCK_DGRAM else reader.accept()[0]
            with line:
                line.settimeout(5)
                while len(got) < 40 and (part := line.recv(2048)):
                    time.sleep(0.001)
                    got.extend(part.rstrip(b"\0").split(b"\0"))

        reads = threading.Thread(target=read, daemon=True)
        reads.start()
        assert host_log.log((4, f"line {number:02}") for number in range(40)) == ""
        reads.join(10)
    assert [line[-2:] for line in got] == [b"%02d" % number for number in range(40)]
    assert all(line.startswith(b"<28>") and b" rankscope[" in line for line in got)


def test_where_there_is_no_log_that_is_said(place: Path) -> None:
    assert host_log.log([(6, "sweep ok")]) == f"{place} did not take 1 of 1 lines: no such process or file"
    listening(place).close()
    assert "connection refused" in host_log.log([(6, "sweep ok")])
