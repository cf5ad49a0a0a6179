"""A real Prometheus that scrapes textfiles, and the dashboard's queries with its variables filled in."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import installed

DASHBOARD = Path(__file__).parents[2] / "scripts/deploy/grafana/rankscope.json"
PROMETHEUS = installed.found("prometheus")
_STARTS_S, _SCRAPED_S = 30.0, 30.0


class Prometheus:
    """Answers of a running one."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10
        ) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        found: list[dict[str, Any]] = self.get("query", query=filled(expression))["result"]
        return found


def filled(expression: str, **variables: str) -> str:
    """An expression of the dashboard as Grafana sends it: all of each variable, short ranges."""
    known = {
        "training_job": ".*",
        "instance": ".*",
        "check": ".*",
        "__rate_interval": "1m",
        "__range": "1m",
        **variables,
    }
    for name in sorted(known, key=len, reverse=True):
        expression = expression.replace(f"${name}", known[name])
    return expression


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard that ask something."""
    content = json.loads(DASHBOARD.read_text())
    return [one for one in content["panels"] if one["type"] != "row"]


def queries(title: str = "") -> list[str]:
    """The expressions of the panel with this title, or of all."""
    return [target["expr"] for panel in panels() if title in ("", panel["title"]) for target in panel["targets"]]


@contextlib.contextmanager
def running(folder: Path, hosts: Mapping[str, Sequence[Path]]) -> Iterator[Prometheus]:
    """A Prometheus that has scraped these textfiles at least twice; `hosts`: files by name of the target."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(hosts))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = _free_port()
    jobs = [
        {"job_name": f"node-{at}", "metrics_path": f"/{at}", "scrape_interval": "1s", "scrape_timeout": "1s",
         "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"], "labels": {"instance": name}}]}
        for at, name in enumerate(hosts)
    ]  # fmt: skip
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs}))  # JSON is YAML, too
    process = subprocess.Popen(
        [str(PROMETHEUS), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", f"--web.listen-address=127.0.0.1:{port}",
         "--log.level=error"], cwd=folder, stderr=(folder / "prometheus.log").open("wb"),
    )  # fmt: skip
    try:
        one = Prometheus(f"http://127.0.0.1:{port}")
        _wait_for(one, f"count(count_over_time(up[1m]) >= 2 and on (instance) up == 1) == {len(hosts)}", folder)
        yield one
    finally:
        process.terminate()
        process.wait(20)
        server.shutdown()
        server.server_close()


def _handler(hosts: Mapping[str, Sequence[Path]]) -> type[http.server.BaseHTTPRequestHandler]:
    of_hosts = list(hosts.values())

    class Textfiles(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"".join(path.read_bytes() for path in of_hosts[int(self.path[1:])])
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    return Textfiles


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(one: Prometheus, expression: str, folder: Path) -> None:
    deadline = time.monotonic() + _STARTS_S + _SCRAPED_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if one.query(expression):
                return
        time.sleep(0.2)
    raise AssertionError(f"nothing was scraped: {(folder / 'prometheus.log').read_text()}")
