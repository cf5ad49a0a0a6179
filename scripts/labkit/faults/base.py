"""What every fault of the lab is: something done to a running job, undone again, with a known answer."""

from __future__ import annotations

import abc
import math
import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from labkit.launch import Job, Plan
from labkit.machine import cgroups, hosts
from labkit.step_times import Pace

TUNING_ROUNDS, TUNING_TRIES = 3, 2
TUNING_S, TUNING_STEPS = 2.5, 8
# Tuning ends when wanted slow-down / measured slow-down lies between these.
TUNED = (0.75, 1.2)
# A case counts only if wanted / measured lies between these: otherwise the fault did not take, or was another dose.
SEEN = (0.4, 2.5)
# By how much a fault lengthens the step, as a share of the healthy step.
DOSES = {"strong": (0.5, 0.9), "weak": (0.12, 0.22)}


@dataclass(frozen=True, slots=True)
class Truth:
    """The right answer.

    causes: component → causes that are right names for it. ranks: those that suffer. whole_host: where naming some of
    the ranks (all of one host's) is enough. function: qualified name's last part, for Python faults. culprit: what the
    evidence could name as well (a process, an interface); not asked for. instances: names of the part (gpu2, mlx5_3, a PCI
    address) of which one must be said; exact: whether the cause must be right as well as the component. everyone: all
    ranks suffer alike, so that naming them all or none is the same. alternatives: other answers that an operator would
    take as right; the docstring of the fault says why. also: culprits of the same job that must be named as well.
    """

    status: str
    causes: dict[str, frozenset[str]]
    ranks: tuple[int, ...] = ()
    whole_host: bool = False
    function: str | None = None
    node: str | None = None
    culprit: str | None = None
    instances: frozenset[str] = frozenset()
    exact: bool = False
    everyone: bool = False
    alternatives: tuple[Truth, ...] = ()
    also: tuple[Truth, ...] = ()


REPORT_BYTES = 16 << 10
LOOKUPS = 2000
SAVE_EVERY = 4


def equipped(plan: Plan) -> Plan:
    """The same job with what training scripts have beside the model: reports through a pipe, a table in memory, checkpoints."""
    return replace(plan, report_bytes=REPORT_BYTES, lookups=LOOKUPS, save_every=SAVE_EVERY)


class Fault(abc.ABC):
    """One fault on one job. `rng` decides what is left open; `dose` is a key of DOSES."""

    name: ClassVar[str]
    group: ClassVar[str] = "other"
    min_hosts: ClassVar[int] = 1
    min_ranks: ClassVar[int] = 2
    # Whether a window of the healthy job is recorded first and given as --baseline.
    needs_baseline: ClassVar[bool] = False
    # Whether the job cannot be made as it was before.
    spoils: ClassVar[bool] = False
    # Whether the dose changes nothing, so that one is enough.
    one_dose: ClassVar[bool] = False
    # How many usual windows it takes to see it.
    windows: ClassVar[float] = 1.0
    # How long it takes at least to see what a level does.
    tuning_s: ClassVar[float] = TUNING_S
    # Whether levels may be tuned; not where another fault lengthens the step already.
    tunes = True

    def __init__(self, job: Job, rng: random.Random, dose: str, healthy: Pace) -> None:
        self.job = job
        self.rng = rng
        self.healthy = healthy
        self.dose = dose
        self.added_share = rng.uniform(*DOSES[dose])
        self.victim = rng.randrange(job.plan.ranks)
        self._started: list[subprocess.Popen[bytes]] = []

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        """What kind of job this fault needs; the usual one unless it says otherwise."""
        return plan

    @property
    def added_s(self) -> float:
        """By how much a step is to become longer, seconds."""
        return self.added_share * self.healthy.step_s

    @property
    def extra_s(self) -> float:
        """By how much the victim's own work must become longer for that: it may usually have to wait for others."""
        own = self.healthy.own_s
        slack = max(own) - own[self.victim] if own else 0.0
        return self.added_s + slack

    def gained_s(self) -> float:
        """By how much a step is longer now than a healthy one, by the job's own times; infinite where a rank ends none."""
        time.sleep(0.5)
        since = time.monotonic()
        time.sleep(max(self.tuning_s, TUNING_STEPS * self.healthy.step_s))
        after = self.job.pace(since, time.monotonic())
        return after.step_s - self.healthy.step_s if after else math.inf

    def tune(self, apply: Callable[[float], object], level: float, least: float, most: float) -> None:
        """Set a level (higher: slower) so that a step becomes about `added_s` longer, by the job's own times."""
        if not self.tunes:
            apply(level)
            return
        for _ in range(TUNING_TRIES):
            nearest = self._approach(apply, level, least, most)
            if nearest is None:
                return
            level = nearest
            apply(level)
            # Measured again at the level that won: setting the same level twice need not have the same effect (a memory limit that
            # is raised and lowered again finds other pages in the cache).
            if SEEN[0] <= self._wanted_over_gained() <= SEEN[1]:
                return

    def _wanted_over_gained(self) -> float:
        return self.added_s / max(self.gained_s(), 1e-3)

    def _approach(self, apply: Callable[[float], object], level: float, least: float, most: float) -> float | None:
        """Some rounds towards the level that is wanted: None once it is met, else the nearest that was measured.

        What was measured, not where the next guess would be: some faults come in jumps.
        """
        best, nearest = level, math.inf
        for _ in range(TUNING_ROUNDS):
            apply(level)
            times = self._wanted_over_gained()
            if TUNED[0] <= times <= TUNED[1]:
                return None
            off = abs(math.log(max(times, 1e-3)))
            if off < nearest:
                best, nearest = level, off
            # At most by a factor of three at a time: a few steps are a poor measurement.
            level = min(most, max(least, level * min(3.0, max(1 / 3, times))))
        return best

    @abc.abstractmethod
    def inject(self) -> Truth:
        """Do it; the right answer from now on."""

    def revert(self) -> None:
        """Undo it; the job is healthy again: what it has started is ended, and no rank has an order."""
        self.end_started()
        for rank in range(self.job.plan.ranks):
            self.job.order(rank, None)

    def start(self, command: list[str], group: cgroups.Group, cores: set[int], host: hosts.Host | None = None) -> None:
        """Start a process that does not belong to the job, for as long as the fault lasts."""
        self._started.append(self.job.start_companion(command, group, cores, host))

    def end_started(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        self._started.clear()


def busy_program(folder: Path, name: str) -> str:
    """A program that computes all the time. A process that runs a script is named after the file: the name that the verdict should give."""
    script = folder / name
    script.write_text("#!/bin/sh\nwhile :; do :; done\n")
    script.chmod(0o700)
    return str(script)
