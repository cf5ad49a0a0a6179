"""Kernels that cannot do one thing or another: a window is recorded all the same and says what is missing, or it is refused in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lacking
import pytest
import small_rank
from at_once import Of, at_once
from installed import RANKSCOPE

from rankscope.observer import recorder
from rankscope.observer.recorder import RecordOptions
from rankscope.observer.window.folder import Window
from rankscope.probes.base import abilities
from rankscope.probes.base.abilities import (
    BTF,
    CLOCK,
    COMPILED_AHEAD,
    MANY_UPROBES,
    RING_BUFFER,
    STATISTICS,
    TASK_REGISTERS,
    TRACEPOINTS,
    UPROBES,
)
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable

pytestmark = pytest.mark.beside

WINDOW_S = 0.7
PORT = 29811
UNIT = Path(__file__).parents[2] / "scripts/deploy/systemd/rankscope-watch.service"


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with small_rank.running(tmp_path_factory.mktemp("rank"), work_s=0.002, rests=6, own_python=True) as pid:
        yield pid


def _timed(window: Window) -> int:
    """Calls that were timed or counted by a probe on a function."""
    return sum(cost.run_count for cost in window.manifest.costs if cost.program.startswith("rs_enter_"))


def _kinds(window: Window) -> set[str]:
    return set(window.patterns.column("kind").to_pylist())


SAYS = {
    BTF: "file calls are not timed", TASK_REGISTERS: "", MANY_UPROBES: "", COMPILED_AHEAD: "", UPROBES: "is not timed",
    TRACEPOINTS: "rs_sched_switch is not attached", CLOCK: "running threads are not sampled",
    STATISTICS: "the cost of the probes in the kernel is unknown",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded(rank: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Of[Window]]:
    """The window without an ability; without none: ''."""
    without = partial(lacking.recorded, (rank,), WINDOW_S, tmp_path_factory.mktemp("windows"))
    with at_once(3, without, ("", *SAYS)) as of:
        yield of


def test_with_all_abilities_nothing_is_missing(recorded: Of[Window], request: pytest.FixtureRequest) -> None:
    window = recorded("", request)
    assert not [
        note for note in window.manifest.notes if "not attached" in note or "not timed" in note or "not sampled" in note
    ]
    assert _timed(window) > 10 and window.manifest.costs and "python" in _kinds(window)


@pytest.mark.parametrize(("ability", "note"), SAYS.items())
def test_without_one_ability_a_window_is_recorded_and_says_so(
    recorded: Of[Window], request: pytest.FixtureRequest, ability: str, note: str
) -> None:
    window = recorded(ability, request)
    missing = [
        one for one in window.manifest.notes
        if any(word in one for word in ("not attached", "not timed", "not sampled", "unknown:"))
    ]  # fmt: skip
    assert all(note in one or ability in (TRACEPOINTS, UPROBES) for one in missing) and bool(missing) is bool(note), (
        missing
    )
    assert not note or any(note in one for one in missing)
    assert window.ranks.num_rows == 1 and window.ranks.column("state").to_pylist() == ["running"]
    if ability not in (UPROBES, STATISTICS):
        assert _timed(window) > 10
    if ability != CLOCK:
        assert window.ranks.column("samples").to_pylist()[0] > 0


DOCTORS = (
    ("samples", 69, "cannot be observed"), ("rs_sched_switch", 69, "cannot be observed"),
    ("collectives", 69, "cannot be observed"), ("uprobes", 69, "cannot be observed"), ("rs_call_site", 69, "cannot be observed"),
    ("file-calls", 0, "in part: storage/slow-read"), ("flows", 0, "in part: network/loss, network/slow-link"),
    ("", 0, "can be observed."),
)  # fmt: skip
Completed = subprocess.CompletedProcess[str]


def _doctor(name: str) -> Completed:
    environ = os.environ | {abilities.VARIABLE: name}
    return subprocess.run([RANKSCOPE, "doctor"], capture_output=True, text=True, check=False, env=environ)


@pytest.fixture(scope="module")
def doctors() -> Iterator[Of[Completed]]:
    with at_once(4, _doctor, [name for name, *_ in DOCTORS]) as of:
        yield of


@pytest.mark.parametrize(("name", "code", "words"), DOCTORS)
def test_doctor_says_whether_a_verdict_can_be_had_here(
    doctors: Of[Completed], request: pytest.FixtureRequest, name: str, code: int, words: str
) -> None:
    done = doctors(name, request)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code and words in said, said
    assert code == 0 or "No verdict is possible without it" in said


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    with small_rank.job(tmp_path_factory.mktemp("job"), PORT) as pids:
        yield pids


@pytest.mark.usefixtures("served")  # they begin meanwhile
def test_record_and_diagnose_say_first_what_was_missing(job: tuple[int, int], tmp_path: Path) -> None:
    environ = os.environ | {abilities.VARIABLE: "collectives"}
    pids = [word for pid in job for word in ("--pid", str(pid))]
    record = [RANKSCOPE, "record", "--window", "2", *pids, "--out", str(tmp_path)]
    recorded = subprocess.run(record, capture_output=True, text=True, check=True, env=environ)
    assert "no verdict can be had of this window" in " ".join((recorded.stdout + recorded.stderr).split())
    judged = subprocess.run([RANKSCOPE, "diagnose", str(tmp_path)], capture_output=True, text=True, check=False)
    said = " ".join(judged.stdout.split())
    assert judged.returncode == 3 and said.startswith("UNKNOWN") and "HANG" not in said and "longer window" not in said
    assert "calls that mark steps and wait for other ranks could not be observed" in said.split(" job ")[0], said


BEGINS = {
    "samples": "no verdict can be had on this host", "uprobes": "no verdict can be had on this host",
    "file-calls": "not seen on this host: file calls",
}  # fmt: skip
Events = tuple[int, list[dict[str, Any]]]  # how the service ended, and what it said


def _served(folder: Path, name: str) -> Events:
    """Which function marks the steps is known after some seconds, where one can be listened to; then silence is an alarm."""
    own = Path(tempfile.mkdtemp(dir=folder))
    command = [RANKSCOPE, "watch", "--json", "--state", str(own / "s"), "--history", str(own / "h")]
    environ = os.environ | {abilities.VARIABLE: name}
    events: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as service:
        assert service.stdout is not None
        for line in service.stdout:
            events.append(json.loads(line))
            if events[-1]["words"].startswith(BEGINS[name]):
                break
        time.sleep(8.0)
        service.send_signal(signal.SIGTERM)
        said, _ = service.communicate(timeout=60)
    return service.returncode, events + [json.loads(line) for line in said.splitlines()]


@pytest.fixture(scope="module")
def served(job: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Of[Events]]:
    with at_once(len(BEGINS), partial(_served, tmp_path_factory.mktemp("served")), BEGINS) as of:
        yield of


@pytest.mark.parametrize(("name", "begins"), BEGINS.items())
def test_the_service_says_as_it_begins_what_it_cannot_see_and_does_not_alarm(
    served: Of[Events], request: pytest.FixtureRequest, name: str, begins: str
) -> None:
    code, events = served(name, request)
    assert code == 0 and events[0]["kind"] == "started"
    assert any(one["words"].startswith(begins) for one in events), events
    of_job = {one["job"] for one in events if one["kind"] == "job" and str(PORT) in one["job"]}
    mine = [one for one in events if one["job"] in of_job]
    assert of_job and not [one for one in mine if one["kind"] == "verdict" or one.get("alarm") == "silent"], mine


@pytest.mark.parametrize(("without", "word"), [(RING_BUFFER, "ring buffer"), (f"{BTF},{TASK_REGISTERS}", "neither")])
def test_without_what_it_cannot_do_without_it_refuses_and_says_why(
    rank: int, monkeypatch: pytest.MonkeyPatch, without: str, word: str
) -> None:
    monkeypatch.setenv(abilities.VARIABLE, without)
    with pytest.raises(BpfUnavailable, match=word) as refused:
        recorder.record(RecordOptions(window_s=WINDOW_S, align_s=0.0, pids=(rank,)))
    assert refused.value.exit_code == 69 and len(str(refused.value).splitlines()) == 1


LEAST = ("sys_admin", "syslog", "sys_nice", "setuid", "setgid", "setpcap")
WITHOUT: dict[str, tuple[str, ...]] = {"all": (), "least": LEAST}  # of what the unit of the service allows


def _with_capabilities(rank: int, folder: Path, name: str) -> tuple[Completed, Path]:
    """How a window is recorded by who has these alone, and where it lies."""
    lines = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    kept = {one.removeprefix("CAP_").lower() for line in lines for one in line.split()} - set(WITHOUT[name])
    rights = ",".join(["-all", *(f"+{one}" for one in sorted(kept))])
    # As systemd mounts it: without CAP_SYS_ADMIN the command cannot.
    mounted = 'mountpoint -q "$0" || mount -t tracefs none "$0"; exec "$@"'
    limits = ["unshare", "--mount", "sh", "-c", mounted, "/sys/kernel/tracing"]
    limits += ["setpriv", "--bounding-set", rights, "--inh-caps", "-all"]
    out = Path(tempfile.mkdtemp(dir=folder)) / "out"
    command = [RANKSCOPE, "record", "--window", "1", "--pid", str(rank), "--json", "--out", str(out)]
    return subprocess.run([*limits, *command], capture_output=True, text=True, check=False), out


@pytest.fixture(scope="module")
def limited(rank: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Of[tuple[Completed, Path]]]:
    with at_once(len(WITHOUT), partial(_with_capabilities, rank, tmp_path_factory.mktemp("limited")), WITHOUT) as of:
        yield of


@pytest.mark.parametrize("name", WITHOUT)
def test_the_capabilities_of_the_service_are_enough_and_so_are_few_of_them(
    limited: Of[tuple[Completed, Path]], request: pytest.FixtureRequest, name: str
) -> None:
    done, out = limited(name, request)
    assert done.returncode == 0, done.stderr
    (window,) = json.loads(done.stdout)
    assert window["ranks"] == 1
    assert not [note for note in window["notes"] if "not attached" in note or "not timed" in note], window["notes"]
    assert list(out.iterdir())
