"""What else the service hears and answers: sweeps that found something critical, the kernel's kills, scrapes of its metrics."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from rankscope.diagnose.face.cli.service.watch import Scrapes
from rankscope.diagnose.service.swept import Swept
from rankscope.diagnose.service.tell import serve
from rankscope.diagnose.service.tell.serve import MetricsPort, NoSuchAddress, PortTaken
from rankscope.diagnose.service.tell.sweep_text import sweep_metrics
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.output import as_prometheus
from rankscope.probes.base.errors import UsageError


def swept(folder: Path, *critical: tuple[str, str]) -> None:
    """What a sweep leaves."""
    with sqlite3.connect(folder / "sweep.db") as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS current(id TEXT, instance TEXT, state TEXT, value REAL, since REAL)"
        )
        database.execute("DELETE FROM current")
        rows = [(check, instance, "critical", 1.0, 0.0) for check, instance in critical]
        database.executemany(
            "INSERT INTO current VALUES (?, ?, ?, ?, ?)", [*rows, ("disk.full", "/", "warning", 0.9, 0.0)]
        )
    database.close()


def test_what_becomes_critical_is_told_once_and_what_was_so_at_first_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    host = Swept(tmp_path)
    assert host.turned() == ()
    swept(tmp_path, ("net.link", "eth0"))
    assert host.turned() == (), "it was so when the service began"
    swept(tmp_path, ("net.link", "eth0"), ("gpu.ecc", "gpu3"), ("mem.ecc", ""))
    assert host.turned() == ("gpu.ecc of gpu3 is critical", "mem.ecc is critical")
    assert host.turned() == ()
    swept(tmp_path)
    assert host.turned() == ()
    swept(tmp_path, ("gpu.ecc", "gpu3"))
    assert host.turned() == ("gpu.ecc of gpu3 is critical",)


def test_a_state_that_is_damaged_or_that_others_can_write_is_no_news(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    host = Swept(tmp_path)
    swept(tmp_path)
    assert host.turned() == ()
    (tmp_path / "sweep.db").write_bytes(b"no database" * 100)
    assert host.turned() == ()
    (tmp_path / "sweep.db").unlink()
    swept(tmp_path, ("gpu.ecc", "gpu3"))
    tmp_path.chmod(0o777)
    assert host.turned() == ()


def ask(port: MetricsPort, request: bytes, at: str = "127.0.0.1") -> bytes:
    with socket.create_connection((at, port.number), timeout=5) as asker:
        asker.sendall(request)
        port.answer(lambda: "rankscope_watch_jobs 1\n")
        found = b""
        while part := asker.recv(4096):
            found += part
        return found


def test_a_scrape_is_answered_with_the_metrics_and_nothing_else_is() -> None:
    port = MetricsPort(0)
    try:
        answer = ask(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\nrankscope_watch_jobs 1\n")
        for other in (b"GET / HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"\x00\xff\r\n\r\n"):
            assert ask(port, other).startswith(b"HTTP/1.1 404 ")
        port.answer(lambda: "nobody asks")
    finally:
        port.close()


def test_who_connects_and_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_PATIENCE_S", 0.05)
    port = MetricsPort(0)
    try:
        with socket.create_connection(("127.0.0.1", port.number), timeout=5) as asker:
            port.answer(lambda: "")
            time.sleep(0.1)
            port.answer(lambda: "")
            assert asker.recv(10) == b""
    finally:
        port.close()


def test_no_crowd_of_other_users_keeps_a_scrape_out_or_the_service_waiting() -> None:
    """Some say nothing, some ask for much and take nothing; all of them came before."""
    port = MetricsPort(0)
    large = "x" * 5_000_000
    said: list[str] = []

    def text() -> str:
        said.append("")
        return large

    with ExitStack() as crowd:
        crowd.callback(port.close)
        for number in range(100):
            other = crowd.enter_context(socket.create_connection(("127.0.0.1", port.number), timeout=5))
            if number % 2:
                other.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        asker = crowd.enter_context(socket.create_connection(("127.0.0.1", port.number), timeout=5))
        asker.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        port.answer(text)
        assert asker.recv(12) == b"HTTP/1.1 200", "in the first beat"
        assert len(said) == 1, "put into words once"
        assert len(port._askers) <= 64


def test_a_port_in_use_and_an_address_of_another_host_are_one_line_each() -> None:
    port = MetricsPort(0)
    try:
        with pytest.raises(PortTaken, match=r"127\.0\.0\.1"):
            MetricsPort(port.number)
    finally:
        port.close()
    with pytest.raises(NoSuchAddress, match=r"^192\.0\.2\.1:0: ") as raised:  # TEST-NET-1: nobody's
        MetricsPort(0, "192.0.2.1")
    assert "ip address" in raised.value.help


@pytest.mark.parametrize(
    ("address", "at", "place"),
    [("0.0.0.0", "127.0.0.1", "0.0.0.0"), ("127.0.0.2", "127.0.0.2", "127.0.0.2"), ("::1", "::1", "[::1]")],
)
def test_metrics_are_answered_on_the_address_that_is_given(address: str, at: str, place: str) -> None:
    try:
        port = MetricsPort(0, address)
    except NoSuchAddress:
        pytest.skip("this host has no IPv6")
    with contextlib.closing(port):
        assert port.url == f"http://{place}:{port.number}/metrics"
        assert ask(port, b"GET /metrics HTTP/1.1\r\n\r\n", at).startswith(b"HTTP/1.1 200 ")
        if address == "127.0.0.2":
            with pytest.raises(ConnectionRefusedError):
                ask(port, b"")


def test_one_address_that_holds_many_connections_does_not_displace_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a scrape whose request is not there yet
    monkeypatch.setattr(serve, "_AT_ONCE_MOST", 200)
    with contextlib.closing(MetricsPort(0, "0.0.0.0")) as port, ExitStack() as crowd:
        asker = crowd.enter_context(socket.create_connection(("127.0.0.1", port.number), timeout=5))
        port.answer(lambda: "")
        # WHEN another address opens more than are kept, after it
        for _ in range(100):
            other = ("127.0.0.1", port.number)
            crowd.enter_context(socket.create_connection(other, timeout=5, source_address=("127.0.0.9", 0)))
        port.answer(lambda: "")
        # THEN that one is answered all the same
        asker.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        port.answer(lambda: "")
        assert asker.recv(12) == b"HTTP/1.1 200"
        assert len(port._askers) == serve._KEPT_OF_ONE


def test_metrics_of_a_sweep_are_answered_too_and_no_other_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "rankscope.prom"
    assert sweep_metrics(file) == ""
    finding = Finding("net.link", "critical", 'a "b"\\c', "/sys", 1.5, "Gb/s", "", "down", "")
    own = as_prometheus(Sweep("host", 1.7e9, 9.0, "boot", 0.5, 0.1, (finding,), (), 0, 1, (), ()))
    file.write_text(own + 'rankscope_sweep_state{check="x\nrankscope_job_slow 1\nrankscope_sweep_state nothing here\n')
    assert sweep_metrics(file) == own and "net.link" in own
    file.write_bytes(b"\xff" * 100)
    assert sweep_metrics(file) == ""
    file.write_text("rankscope_sweep_state 1\n" * 100_000)
    assert sweep_metrics(file) == "", "too long to be one"
    assert sweep_metrics(tmp_path) == ""


@pytest.mark.parametrize(
    "wrong", [Scrapes(9633, "localhost"), Scrapes(9633, ""), Scrapes(None, "0.0.0.0"), Scrapes(None, swept=Path("/x"))]
)
def test_an_address_that_is_none_or_that_nothing_answers_on_is_wrong_usage(wrong: Scrapes) -> None:
    with pytest.raises(UsageError, match="--metrics"):
        wrong.check()
    Scrapes().check()
    Scrapes(9633, "fd00::1", Path("/x")).check()
