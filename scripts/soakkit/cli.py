"""The command line of scripts/soak: two jobs, one of which starts again and again, and windows without an end."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from chaoskit.job import running
from labkit.machine.command import Parser, ended
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, EXIT_NOT_PERMITTED, LabError, rankscope
from soakkit import kept
from soakkit.figures import HEADER, Interval, length_s, rows, table
from soakkit.judged import FLAT, SLOWER, SLOWER_IN_MEAN, Job, problems, too_little

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED, RECORDED_BESIDE = (REPOSITORY / "tests/data/soak" / name for name in ("figures.json", "beside.json"))
_RESTART_S = 45.0
_BETWEEN_S = 1.0  # parts: no step lies in two
_ROUND = (False, False, True, False)  # of four windows, the third by a command of its own; then a pause as long as one
EXIT_TOO_LITTLE = 3
_FOUND = re.compile(r"^(\d+) ranks? found", re.MULTILINE)  # what `record` tells as it begins
_EPILOG = f"""Beside a job of eight ranks, one of which starts short-lived processes all the time, and a second job that is started
again every 45 s, windows are observed back to back: in one process that lives as long as the soak, every fourth by a command of its
own. After four of them comes a pause as long as one, in which the job's steps are those without an observer. It tells a line every ten
minutes and ends with what counts, also where it is interrupted (Ctrl-C). All figures are in a file after each pause: of a run that was
killed `--table` tells them, and the same command goes on with another part until all parts together are as long as was asked for.

With --beside others may use the host meanwhile: the two jobs alone are observed, without pauses, and memory and descriptors alone are
judged. What it costs the job cannot be told then.

exit codes: 0 flat, 1 not (memory or descriptors grew by more than {FLAT:.0%} after ten minutes, a window failed or did not tell of
all ranks, a rank ended, or the job's steps were longer with windows than without: by more than {SLOWER:.0%} in the median, or by more
than {SLOWER_IN_MEAN:.0%} in their mean), 3 too little was seen to say so, or not yet as long as --minutes, 64 wrong usage,
69 something is missing, 77 not root"""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.table:
        return ended(
            "soak", lambda: _told(*kept.read(args.json), kept.settings_of(args.json) or _settings(args), args), ""
        )
    if os.geteuid() != 0:
        print("soak: observing needs root", file=sys.stderr)
        return EXIT_NOT_PERMITTED
    return ended("soak", lambda: _soaked(args), "both jobs are ended")


def _soaked(args: argparse.Namespace) -> int:
    settings = _settings(args)
    seen, times = ([], []) if args.fresh else kept.begun(args.json, settings)
    left_s = min(args.minutes * 60 - length_s(seen), args.part * 60)
    part = Part(seen, times, partial(kept.write, args.json, settings=settings))
    part.keep([])  # a place that cannot be written is better known before than after
    if left_s > 0:
        with tempfile.TemporaryDirectory(prefix="rankscope-soak-") as folder:
            _soak(args, Path(folder), part, left_s)
    return _told(part.seen, part.times, settings, args)


def _settings(args: argparse.Namespace) -> dict[str, float]:
    settings = {"window": args.window, "ranks": args.ranks, "forks": args.forks}
    return settings | ({"beside": 1} if args.beside else {})


def _told(
    seen: Sequence[Interval], times: Sequence[float], settings: Mapping[str, float], args: argparse.Namespace
) -> int:
    """The table, and what it comes to, of a soak with those settings."""
    job = Job(int(settings["ranks"]), settings["forks"] > 0, bool(settings.get("beside")))
    wrong, missing = problems(seen, times, job), too_little(seen, times, job)
    if (done_s := length_s(seen)) < args.minutes * 60:
        missing.append(f"{done_s / 60:.0f} of {args.minutes:g} minutes: the same command goes on")
    print("\n".join([*table(seen, times, args.lines), *wrong, *missing]))
    return EXIT_NOT_GOOD_ENOUGH if wrong else EXIT_TOO_LITTLE if missing else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="scripts/soak", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0, help="of all parts together (default 120)")
    parser.add_argument(
        "--part",
        type=float,
        default=math.inf,
        metavar="MINUTES",
        help="of these no more now (default all that is left); the same command goes on",
    )
    parser.add_argument("--fresh", action="store_true", help="forget earlier parts")
    parser.add_argument("--window", type=float, default=10.0, help="seconds (default 10)")
    parser.add_argument("--ranks", type=int, help="of the job that is measured (default 8; 2 with --beside)")
    parser.add_argument(
        "--beside", action="store_true", help="beside others on this host: memory and descriptors only, no slow-down"
    )
    parser.add_argument(
        "--forks", type=int, default=20, help="processes a second that a rank starts, each for 0.7 s (default 20)"
    )
    parser.add_argument(
        "--lines",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="a line of the table for each so many (default 600)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=REPOSITORY / "soak-out/figures.json",
        help="every window's figures, kept there as it goes (default soak-out/figures.json)",
    )
    parser.add_argument(
        "--record", action="store_true", help="kept in the committed record, which other runs and clones go on with"
    )
    parser.add_argument("--table", action="store_true", help="only the table of what is there")
    args = parser.parse_args(argv)
    args.ranks = args.ranks or (2 if args.beside else 8)
    if args.record:
        args.json = RECORDED_BESIDE if args.beside else RECORDED
    return args


class Part:
    """One part after the earlier ones, on a clock that stood still between them. `seen`, `times`: all intervals, all ends of the steps of
    rank 0 in them."""

    def __init__(
        self,
        before: Sequence[Interval],
        times: Sequence[float],
        write: Callable[[Sequence[Interval], Sequence[float]], None],
    ) -> None:
        self.seen, self._before_s, self._write = list(before), list(times), write
        self.times = self._before_s
        self._number = before[-1].part + 1 if before else 0
        self._began_s = before[-1].ended_s + _BETWEEN_S if before else 0.0
        self._shift_s: float | None = None

    def add(self, one: Interval) -> None:
        """An interval by CLOCK_MONOTONIC."""
        if self._shift_s is None:
            self._shift_s = self._began_s - one.began_s
        shift = self._shift_s
        self.seen.append(replace(one, began_s=one.began_s + shift, ended_s=one.ended_s + shift, part=self._number))

    def keep(self, step_ends_s: Sequence[float]) -> None:
        """All that there is; `step_ends_s`: of this part, by CLOCK_MONOTONIC."""
        shift = self._shift_s or 0.0
        ends = [end + shift for end in step_ends_s]
        self.times = [*self._before_s, *(end for end in ends if self._began_s <= end <= self.seen[-1].ended_s)]
        self._write(self.seen, self.times)


def _soak(args: argparse.Namespace, folder: Path, part: Part, left_s: float) -> None:
    """Another part, until the time is up or somebody interrupts."""
    with (
        running(folder / "job", args.ranks) as job,
        _churning(folder / "other", job.library) as other,
        _observer(args.window) as observer,
    ):

        def pids() -> tuple[int, ...]:
            return (*job.pids, *other) if args.beside else ()

        job.tell(f"churn {args.forks}")
        end = time.monotonic() + left_s
        print(HEADER, flush=True)
        told = len(rows(part.seen, part.times, args.lines, ended=True))
        with contextlib.suppress(KeyboardInterrupt):
            while time.monotonic() < end and job.alive():  # of a job that has ended there is nothing more to see
                for once in _ROUND:
                    part.add(_by_command(args.window, pids()) if once else _by_observer(observer, pids()))
                    part.seen[-1] = last = replace(
                        part.seen[-1], ended=sum(one.poll() is not None for one in job.ranks)
                    )
                    if last.failed or last.ended:
                        print(
                            f"window {len(part.seen)}: {last.failed or 'a rank of the job ended'}",
                            file=sys.stderr,
                            flush=True,
                        )
                if not args.beside:
                    part.add(_pause(args.window))
                part.keep([] if args.beside else job.steps(0))
                lines = rows(part.seen, part.times, args.lines, ended=True)
                if lines[told:]:
                    print("\n".join(lines[told:]), flush=True)
                    told = len(lines)
        part.keep([] if args.beside else job.steps(0))


def _pause(seconds: float) -> Interval:
    began = time.monotonic()
    time.sleep(seconds)
    return Interval(began, time.monotonic(), observed=False)


@contextmanager
def _churning(folder: Path, library: Path) -> Iterator[list[int]]:
    """A job of two ranks that ends and is started again; the pids of the present ones."""
    ended = threading.Event()
    pids: list[int] = []

    def churn() -> None:
        while not ended.is_set():
            with contextlib.suppress(LabError), running(folder, 2, library) as job:
                pids[:] = job.pids
                ended.wait(_RESTART_S)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        yield pids
    finally:
        ended.set()
        thread.join()


@contextmanager
def _observer(window_s: float) -> Iterator[subprocess.Popen[str]]:
    command = [str(Path(rankscope()).with_name("python")), str(Path(__file__).with_name("observer.py")), str(window_s)]
    # In a session of its own: an interrupt is for us, and the window that runs is waited for.
    observer = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield observer
    finally:
        observer.terminate()
        observer.wait()


def _by_observer(observer: subprocess.Popen[str], pids: Sequence[int]) -> Interval:
    assert observer.stdin is not None and observer.stdout is not None
    try:
        observer.stdin.write(f"{' '.join(map(str, pids))}\n")
        observer.stdin.flush()
        line = observer.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise LabError(f"the observer ended with {observer.wait()}")
    said = json.loads(line)
    return Interval(
        said["began_s"], said["ended_s"], True, False, said["rss_bytes"], said["descriptors"], said["ranks"], said["lost"], said["failed"],
        stepped=said["stepped"], watched=said["watched"],
    )  # fmt: skip


def _by_command(window_s: float, pids: Sequence[int]) -> Interval:
    """The command as cron runs it: what it took at its peak."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankscope-soak-") as out, tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [rankscope(), "record", "--window", str(window_s), "--out", out, *(f"--pid={pid}" for pid in pids)],
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        most = 0
        try:
            while True:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                with contextlib.suppress(OSError):
                    most = max(most, len(list(Path(f"/proc/{child.pid}/fd").iterdir())))
                time.sleep(0.1)
        except KeyboardInterrupt:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
        words, told = text.strip().splitlines(), _FOUND.search(text)
    failed = "" if child.returncode == 0 else f"exit {child.returncode}: {words[-1] if words else ''}"[:200]
    return Interval(
        began, time.monotonic(), True, True, usage.ru_maxrss * 1024, most, int(told[1]) if told else 0, 0, failed
    )
