"""Two faults at once, on different ranks. Right is only a verdict whose first two suspects are the two culprits.

Of two ranks only their difference is seen, and that belongs to one of them: pairs need a third rank.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.faults.cpu_hog import CpuHog
from labkit.faults.cpu_quota import CpuQuota
from labkit.faults.python_slow import PythonSlow
from labkit.faults.slow_link import SlowLink
from labkit.faults.slow_read import SlowRead
from labkit.launch import Job, Plan
from labkit.step_times import Pace


class Pair(Fault):
    """`kinds`: the first is on the rank with a core of its own, the second on another (or, for a link, not on its host)."""

    group = "pairs"
    min_ranks = 3  # with two ranks, both slow, nothing shows how long a healthy one takes
    kinds: ClassVar[tuple[type[Fault], type[Fault]]]

    def __init__(self, job: Job, rng: random.Random, dose: str, healthy: Pace) -> None:
        super().__init__(job, rng, dose, healthy)
        first, second = (kind(job, rng, dose, healthy) for kind in self.kinds)
        first.victim = job.lone
        second.victim = rng.choice([rank for rank in range(job.plan.ranks) if rank != job.lone])
        # A step is as long as its slowest rank: with equal doses removing one fault alone would gain little, yet both are faults.
        second.added_share = first.added_share
        self._parts = (first, second)

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        for kind in cls.kinds:
            plan = kind.plan(plan, dose, rng)
        return plan

    def inject(self) -> Truth:
        # Tuned one after the other, each alone: together each hides a part of the other's effect.
        first, second = self._parts
        if isinstance(first, PythonSlow):
            first.inject()
            first.revert()
        also = second.inject()
        first.tunes = False
        return replace(first.inject(), also=(also,))

    def revert(self) -> None:
        for part in self._parts:
            part.revert()


class TwoFunctions(Pair):
    name = "two-functions"
    kinds = (PythonSlow, PythonSlow)


class FunctionAndRead(Pair):
    name = "function+read"
    kinds = (PythonSlow, SlowRead)


class QuotaAndFunction(Pair):
    name = "quota+function"
    kinds = (CpuQuota, PythonSlow)


class HogAndRead(Pair):
    name = "hog+read"
    kinds = (CpuHog, SlowRead)


class _LinkElsewhere(SlowLink):
    """A slow link of a host on which no rank is the first culprit."""

    def inject(self) -> Truth:
        spared = self.job.hosts[self.job.plan.host_of(self.job.lone)]
        self.host = self.rng.choice([host for host in self.job.hosts if host != spared])
        self._strike()
        return self._truth()


class FunctionAndLink(Pair):
    name = "function+link"
    min_hosts = 3
    kinds = (PythonSlow, _LinkElsewhere)
