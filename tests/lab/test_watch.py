"""`rankscope watch` beside real jobs: it notices by itself, names, and says when it is over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import service_log
from labsupport import RANKSCOPE, RunningJob, rankscope

pytestmark = pytest.mark.apart

Torchrun = Callable[..., RunningJob]
HEALING_JOB = Path(__file__).with_name("healing_job.py")


class Watching:
    """A running service, and what it has said."""

    def __init__(self, folder: Path) -> None:
        self.state, self.metrics = folder / "state", folder / "rankscope.prom"
        command = [RANKSCOPE, "watch", "--json", "--no-routine", "--state", self.state, "--history", folder / "history"]
        self.process = subprocess.Popen(
            [*command, "--metrics", self.metrics],
            stdout=(folder / "said").open("wb"),
            stderr=(folder / "stderr").open("wb"),
        )
        self._said, self._errors = folder / "said", folder / "stderr"

    def events(self) -> list[dict[str, Any]]:
        return service_log.events(self._said)

    def wait_for(self, kind: str, seconds: float, after: int = 0, **wanted: Any) -> dict[str, Any]:
        """The first event of this kind beyond the first `after` ones."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._errors.read_text()
            for event in self.events()[after:]:
                if event["kind"] == kind and all(event.get(name) == value for name, value in wanted.items()):
                    return event
            time.sleep(0.1)
        raise AssertionError(f"no {kind} {wanted} in {seconds} s: {self._said.read_text()}{self._errors.read_text()}")

    def wait_until_known(self) -> None:
        """Its steps are learnt."""
        deadline = time.monotonic() + 60
        while not any("a step takes" in event["words"] for event in self.events()):
            assert time.monotonic() < deadline, self._said.read_text()
            time.sleep(0.1)
        time.sleep(2.0)

    def wait_until_a_look_stands_by(self) -> None:
        """Its child and that one's, of which one holds programs, and nothing that they are attached by."""
        deadline = time.monotonic() + 60
        while not any(map(_stands_by, psutil.Process(self.process.pid).children())):
            assert time.monotonic() < deadline, self._errors.read_text()
            time.sleep(0.1)


def _stands_by(child: psutil.Process) -> bool:
    held = []
    with contextlib.suppress(OSError, psutil.Error):
        held = [path.read_text() for path in Path(f"/proc/{child.pid}/fdinfo").iterdir()]
        links = [str(path.readlink()) for path in Path(f"/proc/{child.pid}/fd").iterdir()]
        attached = any("perf_event" in link for link in links) or any("link_type" in text for text in held)
        return bool(child.children()) and any("prog_type" in text for text in held) and not attached
    return False


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[[], Watching]]:
    running: list[Watching] = []

    def start() -> Watching:
        tmp_path.chmod(0o700)
        running.append(Watching(tmp_path))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.wait()


def tell(sick: Path, what: str) -> None:
    """Ask the job for it: at once, as it may read the file at any moment."""
    partial = sick.with_name("partial")
    partial.write_text(what)
    partial.rename(sick)


def test_a_slow_function_is_noticed_named_and_its_end_is_told(
    torchrun: Torchrun, watching: Callable[[], Watching], tmp_path: Path
) -> None:
    sick = tmp_path / "sick"
    torchrun("120", str(sick), script=HEALING_JOB)
    service = watching()
    service.wait_until_known()
    assert [event for event in service.events() if event["kind"] == "alarm"] == []

    tell(sick, "slow")
    began = time.monotonic()
    assert service.wait_for("alarm", 15)["alarm"] == "slower"
    told = service.wait_for("verdict", 40)
    assert told["verdict"]["status"] == "fault", told
    first = told["verdict"]["suspects"][0]
    assert (first["ranks"], first["function"]["name"]) == ([1], "tokenize")
    assert time.monotonic() - began < 30

    sick.unlink()
    over = service.wait_for("over", 15)
    assert 0.03 < over["regained_seconds_per_step"] < 0.09
    assert "tokenize" in over["named"]

    service.process.send_signal(signal.SIGHUP)
    before = len(service.events())
    assert rankscope("trigger", "--state", str(service.state)).returncode == 0
    assert service.wait_for("verdict", 40, after=before)["alarm"] == "asked"

    before = len(service.events())
    assert rankscope("trigger", "--state", str(service.state)).returncode == 0
    service.wait_for("alarm", 10, after=before)
    looking = psutil.Process(service.process.pid).children()
    assert looking
    service.process.kill()
    service.process.wait()
    assert psutil.wait_procs(looking, timeout=5)[1] == [], "the look ends with the service"
    assert rankscope("trigger", "--state", str(service.state)).returncode == 69


def test_a_stopped_rank_and_a_dead_one_are_told_and_the_last_minutes_kept(
    torchrun: Torchrun, watching: Callable[[], Watching], tmp_path: Path
) -> None:
    job = torchrun("120", str(tmp_path / "never"), script=HEALING_JOB)
    victim = job.ranks()[1]
    service = watching()
    service.wait_until_known()
    service.wait_until_a_look_stands_by()

    os.kill(victim, signal.SIGSTOP)
    try:
        assert service.wait_for("alarm", 15, alarm="stopped")["ranks"] == [1]
        told = service.wait_for("verdict", 40)
        assert told["window_began_after_s"] < 2.0  # 0.2 s where nobody takes its turn; loading alone takes longer
    finally:
        os.kill(victim, signal.SIGCONT)
    first = told["verdict"]["suspects"][0]
    assert (told["state"], first["cause"], first["ranks"]) == ("critical", "stopped", [1])
    service.wait_for("over", 15)

    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    dead = service.wait_for("alarm", 15, alarm="dead")
    assert dead["words"].startswith("rank 1 killed by SIGKILL")
    service.wait_for("gone", 30)

    listed = json.loads(rankscope("blackbox", "--state", str(service.state), "--json").stdout)
    assert len(listed) == 2
    shown = json.loads(rankscope("blackbox", listed[0]["name"], "--state", str(service.state), "--json").stdout)
    assert {rank["rank"] for line in shown["lines"] for rank in line["ranks"]} == {0, 1}
    service.process.kill()
    service.process.wait()
    again = watching()
    again.wait_for("started", 30)


def test_a_rank_that_never_comes_back_is_a_hang_and_a_checkpoint_or_an_evaluation_is_none(
    torchrun: Torchrun, watching: Callable[[], Watching], tmp_path: Path
) -> None:
    sick = tmp_path / "sick"
    torchrun("150", str(sick), script=HEALING_JOB)
    service = watching()
    service.wait_until_known()

    tell(sick, "save")
    time.sleep(12)
    assert [event for event in service.events() if event["kind"] in ("alarm", "verdict")] == []

    tell(sick, "evaluate")
    service.wait_for("over", 30, alarm="silent")
    told = service.wait_for("verdict", 30)
    assert told["verdict"]["status"] != "hang", told

    before = len(service.events())
    tell(sick, "loop")
    hang = service.wait_for("verdict", 40, after=before)
    assert hang["state"] == "critical", hang
    first = hang["verdict"]["suspects"][0]
    assert first["ranks"] == [1], first
    service.wait_for("frozen", 5)
