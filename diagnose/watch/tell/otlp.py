"""The metrics to a collector over OTLP, by opentelemetry's own SDK: its data model and its exporter, without its reader and its threads.

The exporter waits for the collector, so it runs in a child; what it cannot send is lost, as the next values say all again.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from rankscope.diagnose.text import clean
from rankscope.diagnose.watch.child import Child
from rankscope.diagnose.watch.tell.metrics import Family
from rankscope.probes.errors import MissingFeature

_DEEPEST = 8  # errors behind an error
_NEEDS = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http")


class NoOtlp(MissingFeature):
    """opentelemetry is not installed."""

    help = "Install it where rankscope is: pip install 'rankscope[otlp]'."


def check() -> None:
    """NoOtlp where the extra is not installed."""
    for name in _NEEDS:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise NoOtlp("metrics over OTLP need opentelemetry's SDK and its exporter over HTTP")


@dataclass(slots=True)
class Otlp:
    """One collector's address, `http://…:4318/v1/metrics`."""

    url: str
    host: str
    timeout_s: float = 10.0
    _child: Child = field(init=False)
    _since: int = field(default_factory=time.time_ns)  # counters count from here
    _begun: int = field(default_factory=time.monotonic_ns)
    _unanswered: int = 0

    def __post_init__(self) -> None:
        self._child = Child(partial(_serve, self.url, self.host, self.timeout_s))

    def send(self, families: Iterable[Family]) -> str:
        """Send them, unless what was sent before is still on its way. What went wrong since the last call, '' if nothing."""
        trouble = ""
        while (said := self._child.next()) is not None:
            self._unanswered -= 1
            trouble = said or trouble
        if not self._child.runs and self._unanswered:
            self._unanswered, trouble = 0, trouble or "what sends them has ended"
        if self._unanswered < 2:
            now = time.time_ns()
            if now < self._since:  # the clock was set back: nobody takes what began after it was read
                self._since = now - (time.monotonic_ns() - self._begun)
            sent = self._child.send({"since": self._since, "now": now, "families": [asdict(one) for one in families]})
            self._unanswered += sent
        return trouble

    def close(self) -> None:
        """End the child."""
        self._child.close()


def _serve(url: str, host: str, timeout_s: float, line: socket.socket) -> None:
    # Here, in the child: the service has neither the SDK nor its threads.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult

    logging.disable(logging.CRITICAL)  # what fails is told by us, once
    exporter = OTLPMetricExporter(endpoint=url, timeout=max(int(timeout_s), 1))
    with line.makefile("rb") as asked:
        for each in asked:
            trouble = ""
            try:
                if exporter.export(_data(json.loads(each), host)) is not MetricExportResult.SUCCESS:
                    trouble = "the collector did not take the metrics"
            except Exception as error:  # whatever a network makes of it
                trouble = _why(error)
            line.sendall(json.dumps(trouble).encode() + b"\n")


def _why(error: BaseException) -> str:
    """Its kind, and what the system said: its own text holds the collector's address, and that a key."""
    kind, inner, reason = type(error).__name__, error, ""
    for _ in range(_DEEPEST):
        if isinstance(inner, OSError) and inner.strerror:
            reason = f": {inner.strerror}"
        deeper = inner.__cause__ or inner.__context__
        if deeper is None:
            break
        inner = deeper
    return clean(f"{kind}{reason}", 200)


def _data(content: dict[str, Any], host: str) -> Any:
    """The families as the SDK has them."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [_metric(family, content["since"], content["now"]) for family in content["families"]]
    scope = ScopeMetrics(InstrumentationScope("rankscope"), metrics, "")
    resource = Resource({"service.name": "rankscope-watch", "host.name": host})
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: dict[str, Any], since: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    points: Sequence[Any] = [NumberDataPoint(labels, since, now, value) for labels, value in family["rows"]]
    data = Gauge(points) if family["kind"] == "gauge" else Sum(points, AggregationTemporality.CUMULATIVE, True)
    return Metric(family["name"], family["text"], "", data)
