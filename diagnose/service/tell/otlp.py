"""Send the metrics to a collector over OTLP, with data model and exporter of opentelemetry's SDK, without its threads.

The exporter blocks, so it runs in a child; what it cannot send is dropped, as the next values
contain all.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from rankscope.diagnose import extras
from rankscope.diagnose.service.child import Child
from rankscope.diagnose.service.tell.metrics import Family
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import MissingFeature

_DEEPEST = 8  # errors in a chain of causes
_NEEDS = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http")


class NoOtlp(MissingFeature):
    """opentelemetry is not installed."""

    help = "Install it where rankscope is: pip install 'rankscope[otlp]'."


def check() -> None:
    """Raise NoOtlp if the extra is not installed."""
    extras.require(_NEEDS, NoOtlp("metrics over OTLP need opentelemetry's SDK and its exporter over HTTP"))


@dataclass(slots=True)
class Otlp:
    """Sends to one collector's address, `http://…:4318/v1/metrics`."""

    url: str
    host: str
    timeout_s: float = 10.0
    _child: Child = field(init=False)
    _since: int = field(default_factory=time.time_ns)  # start time of the counters
    _begun: int = field(default_factory=time.monotonic_ns)
    _unanswered: int = 0

    def __post_init__(self) -> None:
        self._child = Child(partial(_serve, self.url, self.host, self.timeout_s))

    def send(self, families: Iterable[Family]) -> str:
        """Send the metrics, unless two earlier requests are unanswered; return what went wrong since the last call.

        '' if nothing went wrong. Never blocks.
        """
        trouble = ""
        while (said := self._child.next()) is not None:
            self._unanswered -= 1
            trouble = said or trouble
        if not self._child.runs and self._unanswered:
            self._unanswered, trouble = 0, trouble or "what sends them has ended"
        if self._unanswered < 2:
            now = time.time_ns()
            # the clock was set back: collectors refuse values older than their start
            if now < self._since:
                self._since = now - (time.monotonic_ns() - self._begun)
            sent = self._child.send({"since": self._since, "now": now, "families": [asdict(one) for one in families]})
            self._unanswered += sent
        return trouble

    def close(self) -> None:
        """End the child."""
        self._child.close()


def _serve(url: str, host: str, timeout_s: float, line: socket.socket) -> None:
    """Export each line of metrics to `url`, and answer with what went wrong, '' if nothing; runs in the child."""
    # Imported here, in the child: the service has neither the SDK nor its threads.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult

    logging.disable(logging.CRITICAL)  # failures are reported by the service, once
    exporter = OTLPMetricExporter(endpoint=url, timeout=max(int(timeout_s), 1))
    with line.makefile("rb") as asked:
        for each in asked:
            trouble = ""
            try:
                if exporter.export(_data(json.loads(each), host)) is not MetricExportResult.SUCCESS:
                    trouble = "the collector did not take the metrics"
            except Exception as error:  # whatever the network raises
                trouble = _why(error)
            line.sendall(json.dumps(trouble).encode() + b"\n")


def _why(error: BaseException) -> str:
    """Describe an error by kind and system message; its own text may contain the collector's address, with a key in it."""
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
    """Convert a request of `Otlp.send` (JSON) to the SDK's data model. `host`: name of this host."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [_metric(family, content["since"], content["now"]) for family in content["families"]]
    scope = ScopeMetrics(InstrumentationScope("rankscope"), metrics, "")
    resource = Resource({"service.name": "rankscope-watch", "host.name": host})
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: dict[str, Any], since: int, now: int) -> Any:
    """Convert one family (JSON) to the SDK's data model. `since`, `now`: begin of counting and now, Unix nanoseconds."""
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    points: Sequence[Any] = [NumberDataPoint(labels, since, now, value) for labels, value in family["rows"]]
    data = Gauge(points) if family["kind"] == "gauge" else Sum(points, AggregationTemporality.CUMULATIVE, True)
    return Metric(family["name"], family["text"], "", data)
