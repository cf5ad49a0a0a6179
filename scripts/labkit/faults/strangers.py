"""Processes that have nothing to do with the job compute on all cores, all the time: every rank waits for the CPU alike.

Nobody is odd and no window of the healthy job is given: only the kernel's count of who ran meanwhile tells. Those that give way keep the
host as busy, with what the job leaves idle, and cost it nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from labkit.faults.base import Fault, Truth, busy_program
from labkit.faults.cpu_hog import NAMES
from labkit.launch import Plan

# Each takes what the scheduler gives it: the job needs little CPU, so that equal weights hardly delay it (measured: 6 %).
PROCESSES = 2
WEIGHT = {"strong": 16.0, "weak": 5.0}


class Strangers(Fault):
    name = "strangers"
    group = "cpu"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return replace(plan, free_cores=True)

    def inject(self) -> Truth:
        name = self._crowd(WEIGHT[self.dose])
        ranks = tuple(range(self.job.plan.ranks))
        return Truth("fault", {"cpu": frozenset({"contended"})}, ranks, everyone=True, culprit=name)

    def _crowd(self, weight: float, wrapper: Sequence[str] = ()) -> str:
        """Start them in a group of so many times the weight of an ordinary one, each by `wrapper`; their name."""
        name = self.rng.choice(NAMES)
        program = busy_program(self.job.folder, name)
        group = self.job.companion_group("strangers")
        group.weigh_cpu(weight)
        cores = self.job.cores_of(0)
        for _ in range(PROCESSES):
            self.start([*wrapper, program], group, cores)
        return name


class GivesWay(Strangers):
    """The same programs at the lowest priority that there is, SCHED_IDLE in a group of the least weight: whoever accuses them is wrong."""

    name = "gives-way"
    group = "healthy"
    one_dose = True

    def inject(self) -> Truth:
        self._crowd(0.0, ["chrt", "--idle", "0"])
        return Truth(status="healthy", causes={})
