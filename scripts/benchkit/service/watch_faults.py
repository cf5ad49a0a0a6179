"""Faults one after the other beside a service that runs all the time: how soon each is named, whether its end is told, and what is said
while nothing is wrong.

One healthy job of the lab, `rankscope watch` beside it. A fault is made, held until it is named (`_HELD_S` at most), and undone; then the
job is left alone for `_WELL_S`. An alarm that comes meanwhile is false, unless the job's own steps were longer by the floor of the
diagnoser in the `_LATELY_S` before it: hosts are not always equally fast. A rank that is killed ends the job, so it comes last.

`--json FILE` keeps every case as it ends; the next call goes on with the kinds that were seen least: an hour is run in pieces.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit import result_file, verdicts
from labkit.faults import ALL, Truth
from labkit.hangs import score
from labkit.hangs.cases import Answer
from labkit.hangs.service import Service
from labkit.launch import Job, Plan
from labkit.machine import disk
from labkit.machine.shell import LabError, set_up
from rankscope.diagnose.face.cli.output import progress
from rankscope.diagnose.limits import EFFECT_SHARE

KINDS = ("python-slow", "cpu-hog", "slow-link", "slow-read", "stopped", "killed")
TARGET_S = 12.0  # from the onset to the name, median
_HELD_S = 40.0
_OVER_S = 30.0
_WELL_S = 60.0  # so that an hour has fewer faults than looks
_GROWS_LEAST = 1.03
_LOOKS_PER_HOUR = 60  # as many as the service may be asked for
_LATELY_S = 10.0  # most of it lies behind the onset: an alarm takes six steps and more
_ONE_S = 90.0  # a fault that is named late, with its end and what follows


@dataclass(frozen=True, slots=True)
class Case:
    """One fault. Seconds since its onset; None where it did not come. `outcome`: of verdicts.FIRST …; `told_s`: of the alarm; `begun_s`:
    from the alarm to the begin of the window; `grew`: the job's own steps while it lasted, by those before, None where it stood."""

    kind: str
    outcome: str
    told_s: float | None
    window_s: float | None
    named_s: float | None
    over: bool
    said: str
    begun_s: float | None = None
    grew: float | None = None

    @property
    def took_effect(self) -> bool:
        """Whether there was anything to notice: a throttle that the kernel does not heed is no fault."""
        return self.grew is None or self.grew >= _GROWS_LEAST or self.told_s is not None


@dataclass(frozen=True, slots=True)
class Piece:
    """One call: its cases, how long nothing was wrong, the alarms meanwhile, the service's memory at its begin and end; `true_alarms`: of
    steps that did become longer, by the job's own lines."""

    cases: tuple[Case, ...]
    well_s: float
    false_alarms: tuple[str, ...]
    resident_bytes: tuple[int, int]
    true_alarms: tuple[str, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table of all pieces; 0 where every fault was named and told to be over, in time, and no alarm was false."""
    set_up(torch=True)
    before = result_file.read(options.json, Piece) if options.json else []

    def keep(piece: Piece) -> None:
        if options.json:
            result_file.save(options.json, [*before, piece])

    with progress() as say:
        piece = _piece(options, Counter(case.kind for each in before for case in each.cases), say, keep)
    lines, fine = _summary([*before, piece])
    print("\n".join(lines))
    return 0 if fine else 1


def _piece(options: argparse.Namespace, seen: Counter[str], say: Any, keep: Callable[[Piece], None]) -> Piece:
    rng = random.Random(f"{options.seed} {sum(seen.values())}")
    ends = time.monotonic() + 60 * options.minutes
    folder = disk.FOLDER / "service"
    shutil.rmtree(folder, ignore_errors=True)
    looks = ("--windows-per-hour", str(_LOOKS_PER_HOUR))
    with Job(Plan(options.ranks, options.hosts, 0), options.seed) as job, Service(folder, job.name, *looks) as service:
        say("starting")
        job.wait_until_healthy()
        service.wait_until_it_knows_the_step()
        beside = _Beside(job, service, rng)
        beside.leave_alone()
        first = service.resident_bytes

        def until_now() -> Piece:
            return Piece(
                tuple(beside.cases), beside.well_s, tuple(beside.false_alarms), (first, service.resident_bytes),
                tuple(beside.true_alarms),
            )  # fmt: skip

        while time.monotonic() + _ONE_S < ends and not beside.ended:
            last = time.monotonic() + 2 * _ONE_S >= ends
            kinds = [kind for kind in KINDS if kind != "killed" or last]
            kind = min(kinds, key=lambda one: (seen[one], rng.random()))
            say(f"{kind}: {(ends - time.monotonic()) / 60:.1f} minutes left")
            beside.hurt(kind)
            keep(until_now())
            seen[kind] += 1
        return until_now()


class _Beside:
    """The job, the service beside it, and what was seen."""

    def __init__(self, job: Job, service: Service, rng: random.Random) -> None:
        self.job, self.service, self.rng = job, service, rng
        self.cases: list[Case] = []
        self.false_alarms: list[str] = []
        self.true_alarms: list[str] = []
        self.well_s = 0.0
        self._usual_s = 0.0  # a step of the first stretch in which nothing was wrong
        self.ended = False

    def leave_alone(self) -> None:
        """Nothing is wrong: what is said is false, unless the job says so too."""
        before, began = len(self.service.events()), time.monotonic()
        time.sleep(_WELL_S)
        self.well_s += time.monotonic() - began
        if not self._usual_s and (pace := self.job.pace(began, time.monotonic())) is not None:
            self._usual_s = pace.step_s
        for one in self.service.events()[before:]:
            if one["kind"] == "alarm":
                self._note(one)

    def _note(self, alarm: dict[str, Any]) -> None:
        """An alarm that nobody brought about."""
        at_s = time.monotonic() + score.seconds_after(alarm, time.time())
        lately = self.job.pace(at_s - _LATELY_S, at_s)
        grew = lately.step_s / self._usual_s if lately is not None and self._usual_s else 1.0
        if alarm["alarm"] == "slower" and grew >= 1 + EFFECT_SHARE:
            self.true_alarms.append(f"{alarm['words']}, and the job's own steps were {100 * (grew - 1):.0f} % longer")
        else:
            self.false_alarms.append(str(alarm["words"]))

    def hurt(self, kind: str) -> None:
        """One fault from its onset to its end."""
        if kind == "killed":
            self._kill()
            return
        pace = self.job.pace(time.monotonic() - 5.0, time.monotonic())
        if pace is None:
            raise LabError("a healthy rank ended no step: this host is too busy for the lab")
        fault = ALL[kind](self.job, self.rng, "strong", pace)
        fault.tunes = False  # the onset is one moment
        before, onset, since_s = len(self.service.events()), time.time(), time.monotonic()
        truth = fault.inject()
        try:
            self.service.wait_for(lambda events: any(one["kind"] == "verdict" for one in events), _HELD_S, before)
            hurt = self.job.pace(since_s, time.monotonic())
        finally:
            fault.revert()
        case = self._case(kind, truth, before, onset)
        grew = hurt.step_s / pace.step_s if hurt is not None else None
        healed = len(self.service.events())
        over = self.service.wait_for(lambda events: any(one["kind"] == "over" for one in events), _OVER_S, healed)
        self.cases.append(replace(case, over=over, grew=grew))
        self.leave_alone()

    def _kill(self) -> None:
        victim = self.rng.randrange(self.job.plan.ranks)
        before, onset = len(self.service.events()), time.time()
        os.kill(self.job.processes[victim].pid, signal.SIGKILL)
        truth = Truth("hang", {"process": frozenset({"exited"})}, (victim,))
        self.service.wait_for(lambda events: any(one.get("alarm") == "dead" for one in events), _HELD_S, before)
        self.cases.append(self._case("killed", truth, before, onset))
        self.ended = True

    def _case(self, kind: str, truth: Truth, before: int, onset: float) -> Case:
        events = self.service.events()[before:]
        told = [score.seconds_after(one, onset) for one in events if one["kind"] == "alarm"]
        verdict = next((one for one in events if one["kind"] == "verdict"), None)
        if kind == "killed":
            answer = score.of_service(events, truth, onset)
        elif verdict is None or verdict["verdict"] is None:
            return Case(
                kind,
                verdicts.SILENT,
                min(told, default=None),
                None,
                None,
                False,
                verdict["words"] if verdict else "nothing",
            )
        else:
            answer = _answer(verdict, truth, score.seconds_after(verdict, onset))
        began = (
            score.seconds_after(verdict, onset) - verdict["took_s"] + verdict["window_began_after_s"]
            if verdict is not None and verdict.get("window_began_after_s") is not None
            else None
        )
        named = answer.after_s if answer.outcome == verdicts.FIRST else None
        begun = verdict.get("window_began_after_s") if verdict is not None else None
        return Case(kind, answer.outcome, min(told, default=None), began, named, kind == "killed", answer.said, begun)


def _answer(event: dict[str, Any], truth: Truth, after_s: float) -> Answer:
    """What a verdict of the service says of a fault. The lab of hangs asks less: there nobody is the right answer to what is no hang."""
    parsed = verdicts.parse(json.dumps(event["verdict"]))
    named = "; ".join(map(str, parsed.suspects[:3])) or "nobody"
    return Answer(verdicts.score(parsed, truth), f"{parsed.status}: {named}", after_s)


def _summary(pieces: Sequence[Piece]) -> tuple[list[str], bool]:
    made = [case for piece in pieces for case in piece.cases]
    cases = [case for case in made if case.took_effect]
    lines = [f"{'':14}{'cases':>6}{'first':>6}{'over':>6}{'alarm s':>9}{'+window':>9}{'named s':>9}"]
    for kind in (*KINDS, "all"):
        mine = [case for case in cases if kind in (case.kind, "all")]
        right = sum(case.outcome == verdicts.FIRST for case in mine)
        times = "".join(
            f"{_median([getattr(case, name) for case in mine]):>9}" for name in ("told_s", "begun_s", "named_s")
        )
        lines.append(f"{kind:14}{len(mine):>6}{right:>6}{sum(case.over for case in mine):>6}{times}")
    lines += [f"    {case.kind}: {case.outcome}, {case.said}" for case in cases if case.outcome != verdicts.FIRST]
    lines += [f"    {case.kind}: had no effect, and is not counted" for case in made if not case.took_effect]
    false = [words for piece in pieces for words in piece.false_alarms]
    lines.append(
        f"{len(false)} false alarms in {sum(piece.well_s for piece in pieces) / 60:.1f} minutes in which nothing was wrong"
    )
    lines += [f"    {words}" for words in false]
    lines += [f"    true, though nobody brought it about: {words}" for piece in pieces for words in piece.true_alarms]
    grown = ", ".join(
        f"{before / 1e6:.0f} → {after / 1e6:.0f}" for before, after in (piece.resident_bytes for piece in pieces)
    )
    lines.append(f"memory of the service, MB: {grown}")
    named = [case.named_s for case in cases if case.named_s is not None]
    fine = len(named) == len(cases) and all(case.over for case in cases) and not false
    return lines, bool(fine and named and statistics.median(named) <= TARGET_S)


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2f}" if known else "-"
