"""What each command prints with --json beside a real job, on this host, is what its schema says."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import promised
import pytest
from labsupport import RANKSCOPE, RunningJob, rankscope

pytestmark = pytest.mark.beside  # what is said of the host is not looked at, only its form

Torchrun = Callable[..., RunningJob]


class Seen:
    """Runs commands and gathers what is wrong with their output; and which commands were held against a schema. Threads share it."""

    def __init__(self) -> None:
        self.wrong: dict[str, list[str]] = {}
        self.commands: set[str] = set()
        self._lock = threading.Lock()

    def take(self, schema: str, *command: str) -> Any:
        """Run a command with --json; return its document, or the last of its lines."""
        (about, *_) = [one for one in promised.index()[command[0]] if one["schema"] == f"{schema}.schema.json"]
        done = rankscope(*command, "--json")
        assert done.returncode in about["exit_codes"], (command, done.returncode, done.stderr)
        documents = (
            [json.loads(line) for line in done.stdout.splitlines()] if about.get("lines") else [json.loads(done.stdout)]
        )
        for document in documents:
            self.hold(schema, " ".join(command), document)
        self.took(command[0])
        return documents[-1] if documents else None

    def hold(self, schema: str, what: str, document: Any) -> None:
        with self._lock:
            if found := promised.complaints(schema, document):
                self.wrong.setdefault(what, []).extend(found[:5])

    def took(self, command: str) -> None:
        with self._lock:
            self.commands.add(command)


@contextmanager
def watching(folder: Path, job: str, seen: Seen) -> Iterator[str]:
    """The service, whose lines are held against their schema; yields its folder once it knows the job's step."""
    state = str(folder / "state")
    service = subprocess.Popen(
        [RANKSCOPE, "watch", "--json", "--no-routine", "--state", state, "--history", str(folder / "history")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert service.stdout is not None
    lines = []
    try:
        for line in service.stdout:
            lines.append(json.loads(line))
            if "a step takes" in lines[-1]["words"] and lines[-1]["job"] == job:
                break
        yield state
    finally:
        service.terminate()
        lines += [json.loads(line) for line in service.stdout]
        service.wait(timeout=60)
    for event in lines:
        seen.hold("watch", f"watch {event['kind']}", event)
    assert {"started", "job", "verdict", "ended"} <= {event["kind"] for event in lines}
    seen.took("watch")


def served(seen: Seen, job: str, folder: Path) -> None:
    with watching(folder, job, seen) as state:
        answer = seen.take("watch", "trigger", "--wait", "--state", state, "--job", job)
        assert answer["kind"] == "verdict" and answer["verdict"] is not None
        time.sleep(6)  # a line of the black box
        seen.take("top", "top", "--updates", "1", "--state", state)
        seen.take("blackbox", "blackbox", "now", "--state", state)
        seen.take("blackbox-list", "blackbox", "--state", state)
    assert seen.take("ledger", "ledger", "--state", state)


def recorded(seen: Seen, job: str, folder: Path) -> None:
    seen.take("record", "record", "--window", "3", "--job", job, "--out", str(folder / "recorded"))
    store = (folder / "store").as_uri()
    seen.take("record", "record", "--window", "3", "--job", job, "--out", store, "--spool", str(folder / "spool"))
    seen.take("tidied", "compact", store)
    seen.take("tidied", "prune", store, "--older-than", "1")
    seen.take("reputation", "reputation", store, "--keep", str(folder / "book"))


def judged(seen: Seen, job: str, folder: Path) -> None:
    windows = str(folder / "windows")
    seen.take("verdict", "diagnose", "--window", "4", "--job", job, "--no-history", "--out", windows)
    seen.take("verdict", "report", windows, "--html", str(folder / "page.html"))
    seen.take("export", "export", windows, "--to", "folded", "--out", str(folder / "folded"))
    seen.take("bundle", "bundle", windows, "--out", str(folder / "case"), "--key", str(folder / "key"))
    seen.take("verdict", "diagnose", str(folder / "case"))


def looked_at(seen: Seen, job: str, folder: Path) -> None:
    seen.take("top", "top", "--updates", "2", "--window", "3", "--job", job)
    for command in ("doctor", "ranks", "causes"):
        seen.take(command, command)
    seen.take("verdict", "demo")
    swept = seen.take("sweep", "sweep", "--state", str(folder / "sweep"))
    seen.take("sweep-checks", "sweep", "--list")
    (folder / "sweeps").mkdir()
    (folder / "sweeps/here.json").write_text(json.dumps(swept))
    seen.take("sweep-comparison", "sweep", str(folder / "sweeps"))


PARTS = (served, recorded, judged, looked_at)  # none needs what another leaves; the longest first


def test_all_that_is_printed_of_a_live_host_is_what_the_schemas_say(torchrun: Torchrun, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    seen, job = Seen(), torchrun("900", "1")
    with ThreadPoolExecutor(3) as pool:
        for part in [pool.submit(one, seen, job.name, tmp_path) for one in PARTS]:
            part.result()
    assert seen.wrong == {}
    assert seen.commands == set(promised.index())
