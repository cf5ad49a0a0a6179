"""One piece of a soak: two jobs, what attacks them, an observer, and a look at all of it every ten seconds or with every window."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from campaignkit.chaos.job import Job, running
from campaignkit.chaos.users import Forks, forks
from campaignkit.soak.attacks import attacked
from campaignkit.soak.figures import Sample, Who
from labkit.machine.shell import LabError, rankscope

SAMPLE_S = 10.0
_RESTART_S = 45.0
_ROUND = (Who.HELD, Who.HELD, Who.ONCE, Who.HELD)  # then a pause as long as one
# Of a piece with the service, before it and after it: steps without an observer.
_ALONE, _ALONE_MOST_S = 0.1, 300.0
_ENDS_S = 30.0
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Settings:
    """What is the same in all pieces."""

    ranks: int
    churn_hz: int
    window_s: float
    attacks: list[str]


@dataclass(slots=True)
class Piece:
    """What a piece has seen so far. `took`: called with more samples, and what of them is not good."""

    number: float
    settings: Settings
    job: Job
    forks: Forks
    began_s: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def rest(self, seconds: float) -> Sample:
        """Look at the host for so long, with nobody observing."""
        began = time.monotonic()
        time.sleep(seconds)
        return self.add(Sample(self.number, Who.NOBODY, 0, 0), began)

    def add(self, sample: Sample, began_s: float) -> Sample:
        """Complete a sample by the forks and steps of its time."""
        now, longest_s = time.monotonic(), self.forks.longest_s()
        steps = steps_between(self.job.steps(0), began_s, now)
        sample = replace(
            sample, at_s=began_s - self.began_s, seconds=now - began_s, steps=len(steps),
            fork_ms=longest_s * 1e3, probes_ms=self.forks.by_probes_s * 1e3,
            median_ms=statistics.median(steps) * 1e3 if steps else 0.0, mean_ms=statistics.fmean(steps) * 1e3 if steps else 0.0,
        )  # fmt: skip
        self.samples.append(sample)
        if not self.job.alive():
            raise LabError(f"{sum(one.poll() is not None for one in self.job.ranks)} ranks of the job ended")
        return sample


def steps_between(ends_s: list[float], began_s: float, until_s: float) -> list[float]:
    """Lengths of the steps that lie wholly in an interval."""
    within = ends_s[bisect_left(ends_s, began_s) : bisect_right(ends_s, until_s)]
    return [later - earlier for earlier, later in itertools.pairwise(within)]


@contextmanager
def piece(settings: Settings) -> Iterator[Piece]:
    """Start the jobs and what attacks them."""
    with (
        tempfile.TemporaryDirectory(prefix="rankscope-soak-") as place,
        running(Path(place) / "job/ranks", settings.ranks) as job,
        _churning(Path(place) / "other", job.library),
        forks(Path(place)) as probing,
    ):
        folder = Path(place)
        folder.chmod(0o711)
        job.tell(f"churn {settings.churn_hz}")
        with attacked(settings.attacks, _made(folder / "theirs"), job):
            probing.longest_s()
            yield Piece(float(round(time.time())), settings, job, probing)


def windows(one: Piece, until_s: float, keep: Callable[[], None]) -> None:
    """Rounds of windows, each with a pause after it."""
    with _held_observer(one.settings.window_s) as observer:
        while time.monotonic() < until_s:
            for who in _ROUND:
                began = time.monotonic()
                seen = _by_observer(one, observer) if who is Who.HELD else _by_command(one)
                one.add(seen, began)
            one.rest(one.settings.window_s)
            keep()


def watch(one: Piece, until_s: float, keep: Callable[[], None]) -> None:
    """The service, with some time without it before and after."""
    alone_s = min(_ALONE * (until_s - time.monotonic()), _ALONE_MOST_S)
    _alone(one, time.monotonic() + alone_s)
    folder = _made(one.job.folder.parent.parent / "service")
    with (folder / "said").open("wb") as said, (folder / "errors").open("wb") as errors:
        command = [rankscope(), "watch", "--json", "--window", str(one.settings.window_s)]
        command += [word for name in ("state", "history", "sweep") for word in (f"--{name}", str(folder / name))]
        service = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, start_new_session=True
        )
        try:
            cpu_s = 0.0
            while time.monotonic() < until_s - alone_s and service.poll() is None:
                began = time.monotonic()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    service.wait(SAMPLE_S)
                rss_mb, fds, now_s = held_by(service.pid)
                one.add(Sample(one.number, Who.WATCH, 0, 0, rss_mb, fds, max(0.0, now_s - cpu_s)), began)
                cpu_s = max(cpu_s, now_s)
                keep()
            ended = service.poll()
            service.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                service.wait(_ENDS_S)
            if ended is not None or service.poll() != 0:
                words = (folder / "errors").read_text(errors="replace").strip().splitlines()[-1:] or [""]
                one.problems.append(f"the service ended with {service.poll()}: {words[0][:200]}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(service.pid, signal.SIGKILL)
            service.wait()
    one.sums["windows"] = len(list((folder / "history/windows").glob("*")))
    _alone(one, until_s)
    keep()


def _alone(one: Piece, until_s: float) -> None:
    while (left_s := until_s - time.monotonic()) > 0:
        one.rest(min(left_s, SAMPLE_S))


def held_by(session: int) -> tuple[float, float, float]:
    """Memory in MB, open files and CPU time so far of all processes of a session.

    Memory is what they would give back: pages of files are the host's cache, and a process's share of them rises as others that
    map the same libraries end.
    """
    rss_kb, fds, cpu = 0, 0, 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                cpu += sum(map(int, fields[11:15]))
                fds += len(os.listdir(folder / "fd"))  # noqa: PTH208
                lines = (folder / "smaps_rollup").read_text(encoding="ascii").splitlines()
                kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
                rss_kb += kb["Pss"] - kb["Pss_File"]
    return rss_kb / 1024, fds, cpu / _TICK


@contextmanager
def _churning(folder: Path, library: Path) -> Iterator[None]:
    """A job of two ranks that ends and is started again."""
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            with contextlib.suppress(LabError), running(folder, 2, library):
                ended.wait(_RESTART_S)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _held_observer(window_s: float) -> Iterator[subprocess.Popen[str]]:
    python, program = Path(rankscope()).with_name("python"), Path(__file__).with_name("observer.py")
    # In a session of its own: an interrupt is for us, and the window that runs is waited for.
    observer = subprocess.Popen(
        [python, program, str(window_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield observer
    finally:
        observer.terminate()
        observer.wait()


def _by_observer(one: Piece, observer: subprocess.Popen[str]) -> Sample:
    """A window of the process that lives on. What it told too little of is counted."""
    before_s = held_by(observer.pid)[2]
    assert observer.stdin is not None and observer.stdout is not None
    line = ""
    with contextlib.suppress(BrokenPipeError):
        observer.stdin.write("\n")
        observer.stdin.flush()
        line = observer.stdout.readline()
    if not line:
        raise LabError(f"the observer ended with {observer.wait()}")
    said, ranks = json.loads(line), one.settings.ranks
    one.sums["windows"] = one.sums.get("windows", 0) + 1
    one.sums["stepless"] = one.sums.get("stepless", 0) + (said["stepped"] < ranks)
    one.sums["unwatched"] = one.sums.get("unwatched", 0) + (one.settings.churn_hz > 0 and not said["watched"])
    _judge_window(one, said["failed"], said["ranks"])
    cpu_s = held_by(observer.pid)[2] - before_s
    return Sample(
        one.number, Who.HELD, 0, 0, 0.0 if said["failed"] else said["rss_bytes"] / (1 << 20), said["descriptors"], cpu_s
    )


def _by_command(one: Piece) -> Sample:
    """The command as cron runs it: what it took at its peak."""
    with tempfile.TemporaryDirectory(prefix="rankscope-soak-") as out, tempfile.TemporaryFile() as said:
        command = [rankscope(), "record", "--window", str(one.settings.window_s), "--out", out]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
        most = 0
        try:
            while not (waited := os.wait4(child.pid, os.WNOHANG))[0]:
                with contextlib.suppress(OSError):
                    most = max(most, len(os.listdir(f"/proc/{child.pid}/fd")))  # noqa: PTH208
                time.sleep(0.1)
        except KeyboardInterrupt:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        _, status, usage = waited
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        words = said.read().decode("utf-8", "replace").strip().splitlines()
    found = next((int(line.split()[0]) for line in words if " found" in line and line.split()[0].isdigit()), 0)
    _judge_window(one, f"exit {child.returncode}: {(words or [''])[-1]}"[:200] if child.returncode else "", found)
    return Sample(one.number, Who.ONCE, 0, 0, usage.ru_maxrss / 1024, most, usage.ru_utime + usage.ru_stime)


def _judge_window(one: Piece, failed: str, ranks: int) -> None:
    if failed:
        one.problems.append(f"a window failed: {failed}")
        print(f"window {len(one.samples)}: {failed}", file=sys.stderr, flush=True)
    elif ranks < one.settings.ranks:
        one.problems.append(f"a window told of {ranks} of {one.settings.ranks} ranks")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
