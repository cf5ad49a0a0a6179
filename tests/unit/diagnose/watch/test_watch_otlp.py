"""The service's metrics over OTLP: to a real collector's door, and where there is none."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from rankscope.diagnose.service.tell import otlp
from rankscope.diagnose.service.tell.metrics import JobState, RankState, ServiceState, families
from rankscope.diagnose.service.tell.otlp import NoOtlp, Otlp

try:
    otlp.check()
    INSTALLED = True
except NoOtlp:
    INSTALLED = False
needs_the_extra = pytest.mark.skipif(not INSTALLED, reason="rankscope[otlp] is not installed")


def some() -> list[otlp.Family]:
    rank = RankState(3, up=True, stopped=False, silent_s=0.5, waited_share=float("nan"))
    job = JobState(
        'a"b', [rank], 0.11, 0.1, 7, slow=True, hung=False, named=False, alarms={"slower": 2}, windows=1, lost_s=0.0
    )
    return families([job], ServiceState(1.5, 1 << 20, 0.1, 0))


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and what it was sent."""
    got: list[bytes] = []

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/metrics", got
        finally:
            server.shutdown()
            thread.join()


def test_without_the_extra_it_is_one_line() -> None:
    if INSTALLED:
        return
    with pytest.raises(NoOtlp, match="opentelemetry"):
        otlp.check()


@needs_the_extra
def test_a_collector_gets_what_prometheus_gets() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    with collector() as (url, got):
        exporter = Otlp(url, "node7")
        assert exporter.send(some()) == ""
        deadline = time.monotonic() + 60
        while not got and time.monotonic() < deadline:
            time.sleep(0.02)
        exporter.close()
    request = ExportMetricsServiceRequest()
    request.ParseFromString(gzip.decompress(got[0]) if got[0][:2] == b"\x1f\x8b" else got[0])
    (resource,) = request.resource_metrics
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["host.name"] == "node7"
    sent = {one.name: one for one in resource.scope_metrics[0].metrics}
    assert sent.keys() == {family.name for family in some()}
    (point,) = sent["rankscope_job_steps_total"].sum.data_points
    assert (point.as_double, point.attributes[0].value.string_value) == (7.0, 'a"b')
    assert sent["rankscope_rank_silent_seconds"].gauge.data_points[0].as_double == 0.5


@needs_the_extra
def test_a_collector_that_is_away_is_told_and_nobody_waits() -> None:
    exporter = Otlp("http://127.0.0.1:9/v1/metrics", "node7", timeout_s=1.0)
    deadline, trouble = time.monotonic() + 60, ""
    while not trouble and time.monotonic() < deadline:
        began = time.monotonic()
        trouble = exporter.send(some())
        assert time.monotonic() - began < 5.0
        time.sleep(0.1)
    exporter.close()
    assert "collector" in trouble


def test_counters_of_a_collector_never_begin_at_a_moment_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Otlp("http://127.0.0.1:9/v1/metrics", "node7")
    sent: list[dict[str, int]] = []
    exporter._child = SimpleNamespace(next=lambda: None, runs=True, send=sent.append)  # type: ignore[assignment]
    exporter._unanswered = -9
    hour = 3_600_000_000_000
    for set_by in (0, -hour, -hour, 0):
        now = time.time_ns() + set_by
        with monkeypatch.context() as clock:
            clock.setattr(time, "time_ns", lambda now=now: now)
            exporter._child.send = lambda content: sent.append(content) or 0  # type: ignore[method-assign,func-returns-value]
            exporter.send([])
    assert all(one["since"] <= one["now"] for one in sent)
    assert sent[1]["since"] == sent[2]["since"] == sent[3]["since"] < sent[0]["since"]
