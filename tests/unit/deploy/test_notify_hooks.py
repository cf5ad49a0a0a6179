"""The hooks that pass an event on: what Slack, PagerDuty and Alertmanager get, that secrets stay secret, that a dead server ends them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankscope.diagnose.service.alarms import AlarmKind, Relief
from rankscope.diagnose.service.events import Event, of_relief

HOOKS = Path(__file__).parents[3] / "scripts/deploy/hooks"
NAMES = ("slack", "pagerduty", "alertmanager")
SECRET = "T0/B1/s3cr3t-k3y"
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

HANG = Event(
    "alarm", 1.8e9, 'no step for 60 s <!channel> "$(reboot)" & more', "llm: 70b", "critical", {"alarm": "silent"}
).as_json("node-1.gpu.example.com")
SLOW = {**HANG, "state": "warning", "alarm": "slower"}
OVER = of_relief(Relief(AlarmKind.SILENT, "llm: 70b", 100.0, 160.0, "steps again"), 1.8e9, 1.8e9 - 60, "").as_json(
    "node-1.gpu.example.com"
)
BROKEN = {**HANG, "kind": "hardware", "job": None, "drain_reason": "rankscope: nic/down mlx5_3", "drain_host": "node-1"}
SWEPT = {
    "schema": "rankscope.sweep/1",
    "host": "node-7",
    "summary": {"state": "critical"},
    "findings": [{"id": "gpu.xid", "state": "critical"}, {"id": "mem.oom", "state": "warning"}],
}


@dataclass
class Server:
    """What was asked of a server on this machine; `answer`: its status."""

    port: int = 0
    answer: int = 202
    asked: list[tuple[str, Any]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.asked.append((self.path, json.loads(body)))
            self.send_response(found.answer)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        found.port = listening.server_port
        threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
        yield found
        listening.shutdown()


def call(name: str, said: object, folder: Path, port: int, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a hook as the service does, with its secrets in a folder."""
    address = f"http://127.0.0.1:{port}"
    (folder / "slack.url").write_text(f"{address}/{SECRET}\n")
    (folder / "pagerduty.key").write_text(f"{SECRET.replace('/', '')}\n")
    (folder / "alertmanager.url").write_text(f"http://rankscope:{SECRET.replace('/', '')}@127.0.0.1:{port}/base/\n")
    given = {"RANKSCOPE_SECRETS": str(folder), "RANKSCOPE_PAGERDUTY_URL": f"{address}/v2/enqueue", **more}
    return subprocess.run(
        [str(HOOKS / f"notify-{name}.sh")], input=json.dumps(said), env=given, cwd="/", capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip


def sent(name: str, said: object, folder: Path, server: Server, **more: str) -> Any:
    """What one event makes the hook send."""
    server.asked.clear()
    done = call(name, said, folder, server.port, **more)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return [body for _, body in server.asked]


def test_slack_gets_one_line_in_which_a_job_mentions_nobody(tmp_path: Path, server: Server) -> None:
    (hang,) = sent("slack", HANG, tmp_path, server)
    assert server.asked[0][0] == f"/{SECRET}"
    assert hang["text"].startswith(":red_circle: node-1.gpu.example.com `llm: 70b` no step for 60 s &lt;!channel&gt;")
    assert '"$(reboot)" &amp; more' in hang["text"]
    assert sent("slack", SLOW, tmp_path, server)[0]["text"].startswith(":large_yellow_circle:")
    assert sent("slack", OVER, tmp_path, server)[0]["text"].startswith(":white_check_mark:")
    assert sent("slack", SWEPT, tmp_path, server) == [{"text": ":red_circle: node-7 gpu.xid"}]
    assert sent("slack", {**HANG, "state": "ok", "kind": "verdict"}, tmp_path, server) == []


def test_pagerduty_gets_what_is_critical_and_its_end_under_the_same_key(tmp_path: Path, server: Server) -> None:
    (opened,) = sent("pagerduty", HANG, tmp_path, server)
    assert server.asked[0][0] == "/v2/enqueue" and opened["routing_key"] == SECRET.replace("/", "")
    assert (opened["event_action"], opened["payload"]["severity"]) == ("trigger", "critical")
    assert (
        opened["payload"]["source"] == "node-1.gpu.example.com" and "no step for 60 s" in opened["payload"]["summary"]
    )
    (closed,) = sent("pagerduty", OVER, tmp_path, server)
    assert closed["event_action"] == "resolve" and closed["dedup_key"] == opened["dedup_key"]
    assert sent("pagerduty", BROKEN, tmp_path, server)[0]["dedup_key"] != opened["dedup_key"]
    # A slow job wakes nobody, unless that is asked for.
    assert sent("pagerduty", SLOW, tmp_path, server) == []
    assert (
        sent("pagerduty", SLOW, tmp_path, server, RANKSCOPE_PAGE_FROM="warning")[0]["payload"]["severity"] == "warning"
    )


def test_alertmanager_gets_an_alert_that_the_end_has_all_labels_of(tmp_path: Path, server: Server) -> None:
    ((hang,),) = sent("alertmanager", HANG, tmp_path, server)
    assert server.asked[0][0] == "/base/api/v2/alerts"
    assert hang["labels"] == {
        "alertname": "RankscopeJob", "host": "node-1.gpu.example.com", "training_job": "llm: 70b", "reason": "silent",
        "severity": "critical",
    }  # fmt: skip
    (ends,) = sent("alertmanager", OVER, tmp_path, server)
    assert hang["labels"] in [one["labels"] for one in ends] and all(one["endsAt"] < hang["endsAt"] for one in ends)
    ((broken,),) = sent("alertmanager", BROKEN, tmp_path, server)
    assert broken["labels"]["reason"] == "rankscope: nic/down mlx5_3"
    ((swept,),) = sent("alertmanager", SWEPT, tmp_path, server)
    assert swept["annotations"]["summary"] == "gpu.xid"


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_refuses_is_told_of_without_the_secret(name: str, tmp_path: Path, server: Server) -> None:
    server.answer = 403
    done = call(name, HANG, tmp_path, server.port)
    assert done.returncode != 0 and "403" in done.stderr
    assert "s3cr3t" not in done.stderr + done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_never_answers_holds_nobody_up(name: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        done = call(name, HANG, tmp_path, deaf.getsockname()[1], RANKSCOPE_ANSWER_S="1")
        assert done.returncode != 0 and time.monotonic() - began < 15 and "s3cr3t" not in done.stderr


def test_no_command_line_shows_a_secret(tmp_path: Path) -> None:
    # GIVEN a server that lets its clients wait
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        for name in NAMES:
            caller = threading.Thread(
                target=call, args=(name, HANG, tmp_path, deaf.getsockname()[1]), kwargs={"RANKSCOPE_ANSWER_S": "2"}
            )
            caller.start()
            line, _ = deaf.accept()
            seen = b"".join(_command_lines(deaf.getsockname()[1], name))
            line.close()
            caller.join()
            # THEN its own command line, which all users read, has none
            assert b"curl" in seen and b"s3cr3t" not in seen


def _command_lines(port: int, name: str) -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        ours = str(port).encode() in line if name == "pagerduty" else b"--config\0-" in line
        if line.startswith(b"curl\0") and ours:
            yield line


@pytest.mark.parametrize("text", ["", "ftp://host/x", 'http://host/"\nproxy = "http://evil', "http://a b"])
def test_what_is_no_address_is_not_used(text: str, tmp_path: Path) -> None:
    for name, file in (("slack", "slack.url"), ("alertmanager", "alertmanager.url")):
        (tmp_path / file).write_text(text)
        done = subprocess.run(
            [str(HOOKS / f"notify-{name}.sh")], input=json.dumps(HANG), env={"RANKSCOPE_SECRETS": str(tmp_path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (1, f"{file} holds no address\n")
