"""The DaemonSet's pod, with the rights and the profile that the manifest asks for, watches a job outside of it."""

from __future__ import annotations

import time
from pathlib import Path

import holding
import pytest
import service_log
import small_rank
import trial_pod
import yaml
from installed import RANKSCOPE

from rankscope.diagnose.service.place import WatchPlace

pytestmark = pytest.mark.apart  # the jobs of the host are counted

PORT = 29_773
MANIFEST = Path(__file__).parents[2] / "scripts/deploy/kubernetes/watch-daemonset.yaml"


@pytest.mark.skipif(trial_pod.CRUN is None or not trial_pod.PROFILE.exists(), reason="no crun (scripts/setup --lab)")
def test_the_pod_of_the_manifest_watches_and_looks_closer(tmp_path: Path) -> None:
    # GIVEN the manifest's container as a runtime makes it, and a job outside of it
    tmp_path.chmod(0o700)
    pod = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
    program, *command = trial_pod.command_of(pod, "watch")
    assert program == "/opt/rankscope/.venv/bin/rankscope"
    node = tmp_path / "pod"
    (node / "textfile").mkdir(parents=True)
    (node / "textfile/rankscope.prom").write_text("rankscope_sweep_duration_seconds 1.5\n")
    with (
        small_rank.running(tmp_path, port=PORT),
        trial_pod.running(pod, node, [str(RANKSCOPE), *command, "--no-routine", "--window", "1.5"]),
    ):
        # WHEN it has found the job and is asked for a look
        job = service_log.first(node / "state/watch", "job", PORT, node / "errors", 60)
        time.sleep(3)
        WatchPlace(node / "state/watch").ask(job["job"])
        told = service_log.first(node / "state/watch", "verdict", PORT, node / "errors", 90)["verdict"]
        # THEN probes, steps and stacks are all there
        assert told["ranks"] == [0] and 0.01 < told["step_seconds"]["p50"] < 0.06
        assert not [note for note in told["notes"] if "not attached" in note or "not timed" in note]
        assert list((node / "cache").iterdir())
        # A Prometheus is answered on the pod's address, with what the sweep left too.
        scraped = trial_pod.scraped(pod)
        assert "\nrankscope_watch_jobs 1\n" in scraped and scraped.endswith("\nrankscope_sweep_duration_seconds 1.5\n")
        assert time.time() - (node / "alive/watch").stat().st_mtime < 60
    lines = (node / "errors").read_text().splitlines()
    # It says that nothing guards the node: here the other container does not run.
    assert any("no guard runs on this host" in line for line in lines)
    assert f"rankscope: metrics on http://{trial_pod.ADDRESS}:{trial_pod.port_of(pod)}/metrics" in lines
    expected = ("another observer", "no guard runs", "metrics on")
    assert not [line for line in lines if not any(one in line for one in expected)]


@pytest.mark.skipif(trial_pod.CRUN is None or not trial_pod.PROFILE.exists(), reason="no crun (scripts/setup --lab)")
def test_the_guard_of_the_pod_ends_what_holds_up_the_node(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    pod = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
    _, *command = trial_pod.command_of(pod, "guard")
    node = tmp_path / "pod"
    with trial_pod.running(pod, node, [str(RANKSCOPE), *command], "guard"):
        until_s = time.monotonic() + 30
        while not (node / "observers/guard").exists():
            assert time.monotonic() < until_s, (node / "errors").read_text()
            time.sleep(0.1)
        time.sleep(1)  # it looks
        took_s = holding.unguarded_probe_s()
    print(f"every fork was held up for {took_s:.1f} s")
    assert took_s < holding.ENDED_S
    assert not (node / "errors").read_text()
