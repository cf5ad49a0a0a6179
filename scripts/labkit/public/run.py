"""Cases one after the other: start the program, wait until it trains, ask rankscope from outside, compare."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from labkit import verdicts
from labkit.jobs import machine
from labkit.machine.shell import LabError, rankscope
from labkit.public.cases import Case, Result
from labkit.public.kinds import KINDS, Kind
from labkit.public.score import judged, mean_step_s
from labkit.run import KEPT, call
from labkit.step_times import rows

PROGRAMS = Path(__file__).parent / "programs"
START_TIMEOUT_S = 120.0
# So many steps, and so long, before anybody looks: what a program does once at its start is over.
STEPS_FIRST, SETTLES_S = 12, 6.0

Progress = Callable[[Case, str], None]


class Running:
    """A program of the suite that runs. Leaving the context kills every process of it and removes its files."""

    def __init__(self, case: Case) -> None:
        self.case, self.kind = case, KINDS[case.kind]
        self.folder = machine.FOLDER / "public"

    def __enter__(self) -> Running:
        machine.clean_up()
        self.folder.mkdir(parents=True)
        group = machine.group("public")

        def before_exec() -> None:
            (group / "cgroup.procs").write_text("0")

        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                _command(self.kind, self.case, self.folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **_environment(self.kind, self.case)},
                start_new_session=True, preexec_fn=before_exec,  # noqa: PLW1509
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self._process.kill()
            machine.clean_up()
            self._process.wait()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def lines(self) -> list[list[tuple[float, float]]]:
        """Of each rank (end in Unix seconds, seconds) of its steps so far."""
        return [
            [(float(ended), float(took)) for ended, took in rows(self.folder / f"rank{rank}.lines", 2)]
            for rank in range(self.kind.ranks)
        ]

    def wait_until_it_trains(self) -> None:
        """LabError where it does not."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while min(map(len, self.lines())) < STEPS_FIRST:
            if self._process.poll() is not None or time.monotonic() > deadline:
                with contextlib.suppress(OSError):
                    last = (self.folder / "log").read_text(errors="replace").splitlines()[-8:]
                    raise LabError(
                        f"{self.case.name} does not train\n" + "\n".join(f"    | {one[:200]}" for one in last)
                    )
                raise LabError(f"{self.case.name} does not train")
            time.sleep(0.2)
        time.sleep(SETTLES_S)


def _environment(kind: Kind, case: Case) -> dict[str, str]:
    """Allocators keep what they have: by chance they would give it back in each step in one of several equal processes."""
    anew = kind.word == "anew" and case.fault
    return {
        "OMP_NUM_THREADS": "2" if kind.word == "threads" and case.fault else "1",
        "MALLOC_MMAP_THRESHOLD_": "131072" if anew else "33554432",
        "MALLOC_TRIM_THRESHOLD_": "131072" if anew else "4294967296",
    }


def _command(kind: Kind, case: Case, folder: Path) -> list[str]:
    words = [str(PROGRAMS / f"{kind.program}.py"), str(folder), "fault" if case.fault else "healthy", str(case.seed)]
    words.append(kind.word)
    if kind.ranks == 1:
        return [sys.executable, *words]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(kind.ranks)]
    return [sys.executable, *torchrun, *words]


def run_cases(cases: Sequence[Case], window_s: float, progress: Progress, keep: bool) -> Iterator[Result]:
    """Run all, in their order."""
    for case in cases:
        began = time.monotonic()
        progress(case, "starting")
        try:
            with Running(case) as job:
                job.wait_until_it_trains()
                progress(case, "observing")
                result = _asked(job, window_s)
                if keep or result.outcome != verdicts.FIRST:
                    _keep(job, result)
        except LabError as error:
            result = Result(case, verdicts.FAILED, str(error))
        yield replace(result, wall_s=time.monotonic() - began)


def _asked(job: Running, window_s: float) -> Result:
    command = [rankscope(), "diagnose", "--json", "--no-history", "--window", f"{window_s:g}"]
    outcome, why, said = call([*command, "--out", str(job.folder / "window")])
    if outcome:
        return Result(job.case, outcome, why, verdict=said)
    try:
        window = json.loads(said)["window"]
    except ValueError:  # no rank was found
        return Result(job.case, verdicts.SILENT, "no verdict was printed", verdict=said)
    start_s, end_s = (datetime.fromisoformat(window[at].replace("Z", "+00:00")).timestamp() for at in ("start", "end"))
    return judged(job.case, said, mean_step_s(job.lines(), start_s, end_s))


def _keep(job: Running, result: Result) -> None:
    """What is needed to look at a case later."""
    place = KEPT / "public" / result.case.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "verdict.json").write_text(result.verdict)
    with contextlib.suppress(OSError):
        shutil.copytree(job.folder, place / "job", ignore=shutil.ignore_patterns("*.pt", "*.gz", "*.jsonl"))
