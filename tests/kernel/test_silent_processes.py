"""A process whose owner keeps all who read of it below /proc waiting: it is told as silent, all others are seen, and nobody waits long."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from campaignkit.chaos.job import PROGRAMS, Job, running
from labkit.machine.shell import run
from rankscope.observer.census.ranks import find_ranks
from rankscope.probes.base import patience
from rankscope.probes.base.patience import SILENT, Silent
from rankscope.probes.host import procfs
from rankscope.probes.mapped import reader
from rankscope.probes.mapped.reader import READER, FileNotRead

Holder = Callable[[str], "Held"]
KINDS = ("lock", "exec")
_BUSY_S = 90  # where others use the machine ten times over; it waited for ever, or two minutes, and there was no window
RANKSCOPE = [sys.executable, "-m", "rankscope.diagnose.face.cli.main"]


class Held:
    """A process that will hold the lock of a kind when it is told to."""

    def __init__(self, process: subprocess.Popen[str], server: subprocess.Popen[str]) -> None:
        self.process, self.server, self.pid = process, server, process.pid

    def hold(self) -> int:
        """From now on whoever reads of it waits."""
        self.server.send_signal(signal.SIGSTOP)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == "holds"
        time.sleep(0.2)
        return self.pid


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    """Starts one, of another user, with the environment of a rank."""
    open_to_all = Path(tempfile.mkdtemp())
    open_to_all.chmod(0o755)
    place, source = open_to_all / "served", tmp_path / "data.bin"
    place.mkdir()
    source.write_bytes(os.urandom(65536))
    program = open_to_all / "silent"
    run("cc", "-O1", "-pthread", "-o", program, PROGRAMS / "silent.c")
    server = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "fuse.py"), str(place), str(source), "whole"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    assert server.stdout.readline().strip() == "ready"
    started: list[subprocess.Popen[str]] = []

    def start(kind: str) -> Held:
        said = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29511"}
        process = subprocess.Popen(
            [str(program), str(place / source.name), kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **said}, user=65534,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        return Held(process, server)

    yield start
    for process in started:
        process.kill()
    server.kill()
    server.wait()
    for process in started:
        process.wait(10)
    subprocess.run(["umount", "-l", place], check=True)
    shutil.rmtree(open_to_all)
    READER.close()
    patience._silent.clear()
    patience._owners.clear()


def hold_all(holder: Holder) -> set[int]:
    """Every kind at once; their pids."""
    return {held.hold() for held in [holder(kind) for kind in KINDS]}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with running(tmp_path_factory.mktemp("job"), 2) as started:
        yield started


@pytest.mark.parametrize("kind", KINDS)
def test_the_census_says_that_it_is_silent_and_finds_the_ranks_of_others(kind: str, holder: Holder, job: Job) -> None:
    pid = holder(kind).hold()
    began = time.monotonic()
    census = find_ranks()
    assert time.monotonic() - began < 5
    assert [one.reason for one in census.rejected if one.pid == pid] == [SILENT]
    assert {one.pid for one in census.ranks} >= {rank.pid for rank in job.ranks}


def test_ranks_ends_and_names_them(holder: Holder, job: Job) -> None:
    pids = hold_all(holder)
    began = time.monotonic()
    said = subprocess.run([*RANKSCOPE, "ranks", "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert time.monotonic() - began < 30
    told = json.loads(said.stdout)
    assert {one["pid"]: one["reason"] for one in told["rejected"] if one["pid"] in pids} == dict.fromkeys(pids, SILENT)
    assert {one["pid"] for one in told["ranks"]} >= {rank.pid for rank in job.ranks}


def test_a_window_is_made_beside_them(holder: Holder, job: Job, tmp_path: Path) -> None:
    hold_all(holder)
    began = time.monotonic()
    out = tmp_path / "windows"
    command = [*RANKSCOPE, "record", "--window", "2", "--out", str(out)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert said.returncode == 0, said.stderr
    assert time.monotonic() - began < _BUSY_S
    assert list(out.glob("*"))


def test_ranks_that_fall_silent_in_mid_window_cost_others_nothing(holder: Holder, job: Job, tmp_path: Path) -> None:
    silent = [holder(kind) for kind in KINDS]
    began = time.monotonic()
    out = tmp_path / "windows"
    command = [*RANKSCOPE, "record", "--window", "4", "--out", str(out)]
    recording = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert recording.stderr is not None
    for line in recording.stderr:
        if "observing" in line:
            break
    time.sleep(1.5)
    for each in silent:
        each.hold()
    _, rest = recording.communicate(timeout=100)
    assert recording.returncode == 0, rest
    assert time.monotonic() - began < _BUSY_S
    assert list(out.glob("*"))


@pytest.mark.parametrize("kind", KINDS)
def test_it_keeps_no_library_of_others_from_being_read(kind: str, holder: Holder) -> None:
    held = holder(kind)
    own = next(one for one in procfs_maps(os.getpid()) if "libc.so" in one[1])
    theirs = next(one for one in procfs_maps(held.pid) if "libc.so" in one[1])
    held.hold()
    with pytest.raises(FileNotRead, match="memory does not respond"):
        READER.open(f"/proc/{held.pid}/map_files/{theirs[0]}", theirs[2], theirs[3])
    opened = READER.open(f"/proc/{os.getpid()}/map_files/{own[0]}", own[2], own[3])
    os.close(opened.descriptor)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_keeps_back_between_two_questions_is_held_against_no_disk(
    kind: str, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds its lock in beats, so that it answers whenever it is asked whether it does."""
    monkeypatch.setattr(reader, "_must_answer", lambda path: None)
    held = holder(kind)
    own = next(one for one in procfs_maps(os.getpid()) if "libc.so" in one[1])
    theirs = next(one for one in procfs_maps(held.pid) if "libc.so" in one[1])
    assert own[2:] == theirs[2:]
    held.hold()
    with pytest.raises(FileNotRead, match="memory does not respond"):
        READER.open(f"/proc/{held.pid}/map_files/{theirs[0]}", theirs[2], theirs[3])
    opened = READER.open(f"/proc/{os.getpid()}/map_files/{own[0]}", own[2], own[3])
    os.close(opened.descriptor)


def test_a_lock_that_is_let_go_in_time_counts_against_its_owner_and_no_disk(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_must_answer", lambda path: None)
    held = holder("lock")
    theirs = next(one for one in procfs_maps(held.pid) if "libc.so" in one[1])
    held.hold()
    letting_go = threading.Timer(0.6, held.server.send_signal, (signal.SIGCONT,))
    letting_go.start()
    opened = READER.open(f"/proc/{held.pid}/map_files/{theirs[0]}", theirs[2], theirs[3])
    letting_go.join()
    os.close(opened.descriptor)
    assert READER._waits.slow_s == {} and READER._waits.hung == {}
    free = READER._waits.finding
    assert free.left(lambda: "user 65534") <= free.freely - 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_what_keeps_its_readers_waiting_is_read_again_when_it_answers(kind: str, holder: Holder) -> None:
    held = holder(kind)
    pid = held.hold()
    with pytest.raises(Silent):
        procfs.read_environ_bytes(pid)
    held.server.send_signal(signal.SIGCONT)
    until = time.monotonic() + 10
    while patience.is_silent(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert procfs.read_stat(pid).pid == pid
    assert procfs.read_environ_bytes(pid)


def procfs_maps(pid: int) -> list[tuple[str, str, str, int]]:
    """Range, path, device and inode of each mapping."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6:
            start, end = (int(number, 16) for number in fields[0].split("-"))
            found.append((f"{start:x}-{end:x}", fields[5], fields[3], int(fields[4])))
    return found


def test_a_sweep_judges_all_other_processes(holder: Holder, tmp_path: Path) -> None:
    hold_all(holder)
    began = time.monotonic()
    command = [*RANKSCOPE, "sweep", "--json", "--state", str(tmp_path), "--only", "fs.stuck", "--only", "job.orphans"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert time.monotonic() - began < _BUSY_S
    told = json.loads(said.stdout)
    assert not [one for one in told["findings"] if one["state"] == "unknown"], said.stdout
