"""A live fault in the dashboard: a job that is slow from its start, its culprit by Prometheus, and nothing of it when it is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import prometheus
import pytest
import yaml
from labsupport import RunningJob, rankscope
from test_watch import HEALING_JOB, Watching, tell

pytestmark = pytest.mark.apart
RULES = prometheus.DASHBOARD.parents[1] / "prometheus/rankscope-watch-rules.yaml"


def written(service: Watching, holds: Callable[[str], bool], seconds: float = 40.0) -> str:
    """The textfile as soon as it is so; it is written every 15 s."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        text = service.metrics.read_text() if service.metrics.exists() else ""
        if holds(text):
            return text
        time.sleep(0.2)
    raise AssertionError(text)


def test_who_slows_a_job_from_its_start_is_on_the_dashboard_and_alerted(
    torchrun: Callable[..., RunningJob], tmp_path: Path
) -> None:
    # GIVEN a job whose rank 1 was never as fast as its peer, so that no step is slower than usual
    tmp_path.chmod(0o700)
    tell(sick := tmp_path / "sick", "slow")
    job = torchrun("150", str(sick), script=HEALING_JOB)
    service = Watching(tmp_path)
    try:
        name = _known(service, job)
        time.sleep(2.0)
        assert rankscope("trigger", "--job", name, "--state", str(service.state)).returncode == 0
        told = service.wait_for("verdict", 60, job=name)
        assert told["verdict"]["status"] == "fault", told
        ours = f'training_job="{name}"'
        text = written(service, lambda text: f"rankscope_suspect{{{ours}" in text)
        assert "tokenize" not in text
        if prometheus.PROMETHEUS is not None:
            _dashboard_shows(tmp_path, service.metrics, name)

        # WHEN it gets well, without an alarm that could end, and is over THEN nobody is named any more, and nothing of it stays
        sick.unlink()
        written(
            service,
            lambda text: f"rankscope_suspect{{{ours}" not in text and f"rankscope_job_named{{{ours}}} 0" in text,
        )
        job.launcher.terminate()
        service.wait_for("gone", 30, job=name)
        written(service, lambda text: ours not in text)
    finally:
        service.process.terminate()
        service.process.wait(20)
    assert "training_job" not in service.metrics.read_text()


def _known(service: Watching, job: RunningJob) -> str:
    """The name of this job for the service, once its steps are learnt: others may run here, too."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for event in service.events():
            if "a step takes" in event["words"] and str(job.port) in event["job"]:
                return str(event["job"])
        time.sleep(0.2)
    raise AssertionError(service.events())


def _dashboard_shows(tmp_path: Path, textfile: Path, job: str) -> None:
    rules = {
        rule["alert"]: rule["expr"]
        for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    }  # fmt: skip
    with prometheus.running(tmp_path, {"node-1.example:9100": [textfile]}) as one:
        _, (lost,), (share,) = (
            [row for row in one.query(expression) if row["metric"]["training_job"] == job]
            for expression in prometheus.queries("Who costs what")
        )
        who = {name: lost["metric"][name] for name in ("component", "cause", "rank", "status")}
        assert who == {"component": "python", "cause": "slow-function", "rank": "1", "status": "fault"}
        assert 0.03 < float(lost["value"][1]) < 0.09 and 0.1 < float(share["value"][1]) < 0.7
        firing = {
            name: [row["metric"] for row in one.query(rules[name]) if row["metric"]["training_job"] == job]
            for name in ("RankscopeJobSlowFromStart", "RankscopeJobSlow", "RankscopeJobHung")
        }
        assert [row["rank"] for row in firing.pop("RankscopeJobSlowFromStart")] == ["1"]
        assert firing == {"RankscopeJobSlow": [], "RankscopeJobHung": []}
        print(f"{job}: {who}, {lost['value'][1]} s/step, {share['value'][1]}")
