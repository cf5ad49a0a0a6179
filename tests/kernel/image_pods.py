"""The image: its root runs the pods of the manifests, with their rights, and what they say reaches a Prometheus."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import image_root
import pytest
import service_log
import small_rank
import trial_pod
import yaml

from rankscope.diagnose.service.place import WatchPlace

PORT = 29_779
DEPLOY = image_root.REPOSITORY / "scripts/deploy"
pytestmark = pytest.mark.skipif(
    trial_pod.CRUN is None or not trial_pod.PROFILE.exists(), reason="no crun (scripts/setup --lab)"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("image")
    configuration = image_root.unpacked(image_root.archive(folder), folder / "root")
    assert configuration["config"]["Entrypoint"] == ["rankscope"]
    yield folder / "root"
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_pods_of_the_image_watch_a_job_and_sweep_the_node(root: Path, tmp_path: Path) -> None:
    # GIVEN both pods of the kustomization in the image's root, and a job outside of them
    tmp_path.chmod(0o700)
    pods = {
        name: yaml.safe_load((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())["spec"]["template"]["spec"]
        for name in ("watch-daemonset", "daemonset")
    }
    watch, sweep = pods["watch-daemonset"], pods["daemonset"]
    node, swept = tmp_path / "pod", tmp_path / "sweep"
    (node / "textfile").mkdir(parents=True)
    swept.mkdir()
    (swept / "textfile").symlink_to(node / "textfile")  # one folder of the node
    command = [*trial_pod.command_of(watch, "watch"), "--no-routine", "--window", "1.5"]
    with (
        small_rank.running(tmp_path, port=PORT),
        trial_pod.running(watch, node, command, root=root),
        trial_pod.running(sweep, swept, trial_pod.command_of(sweep, "sweep"), "sweep", root=root) as sweeping,
    ):
        # WHEN the service has found the job and is asked for a look
        job = service_log.first(node / "state/watch", "job", PORT, node / "errors", 90)
        time.sleep(3)
        WatchPlace(node / "state/watch").ask(job["job"])
        told = service_log.first(node / "state/watch", "verdict", PORT, node / "errors", 90)["verdict"]
        # THEN probes, steps and stacks are all there, without a compiler and headers in the image
        assert told["ranks"] == [0] and 0.01 < told["step_seconds"]["p50"] < 0.06
        assert not [note for note in told["notes"] if "not attached" in note or "not timed" in note]
        # AND one scrape has the job and the node's health
        until_s = time.monotonic() + 60
        while "rankscope_sweep_state{" not in (scraped := trial_pod.scraped(watch)):
            assert time.monotonic() < until_s, (swept / "errors").read_text()
            time.sleep(0.5)
        assert "rankscope_watch_jobs 1\n" in scraped and 'check="disk.full"' in scraped
    expected = ("another observer", "no guard runs", "metrics on")
    lines = (node / "errors").read_text().splitlines()
    assert not [line for line in lines if not any(one in line for one in expected)], lines
    assert not (swept / "errors").read_text()
    assert sweeping.returncode == 0, "it ends when it is told to, and leaves no process"


def test_the_image_brings_what_hooks_and_options_of_the_chart_need(root: Path) -> None:
    def inside(*command: str) -> str:
        script = 'mount -t proc proc "$0/proc"; exec chroot "$0" "$@"'  # in a mount namespace of its own
        words = ["unshare", "--mount", "sh", "-ec", script, str(root), *command]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert inside("rankscope", "--version").startswith("rankscope ")
    inside("/usr/bin/python3", "-I", "-c", "import json")
    assert "curl" in inside("curl", "--version") and inside("sh", "-c", "command -v find")
    python = "/opt/rankscope/.venv/bin/python"
    inside(python, "-c", "import opentelemetry.exporter.otlp.proto.http, grpc, distributed, pyarrow.fs")
    for hook in (DEPLOY / "hooks").glob("*.sh"):
        there = root / "opt/rankscope/scripts/deploy/hooks" / hook.name
        assert there.read_bytes() == hook.read_bytes() and there.stat().st_mode & 0o022 == 0
    # Nothing to compile with, nothing to install Python's packages with.
    assert not [name for name in ("gcc", "clang", "bpftool", "pip", "pip3") if list(root.glob(f"usr/bin/{name}*"))]
    assert not list(root.glob("opt/rankscope/.venv/bin/pip*"))
