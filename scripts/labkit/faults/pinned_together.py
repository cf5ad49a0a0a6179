"""Two ranks of one host that had all its cores are pinned to one: each of the two waits for the other.

Always two ranks that compute much: on two cores a third would make both cores full without the fault already. Nobody is odd
among two that suffer alike; a window of the healthy job tells. Naming both ranks or none is the same.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.launch import Plan

RANKS = 2
# Random crops per sample (about 40 us of CPU each), and the time on the device in ms.
WORK = {"strong": (1500, 20.0), "weak": (500, 90.0)}


class PinnedTogether(Fault):
    name = "pinned-together"
    group = "cpu"
    needs_baseline: ClassVar[bool] = True

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        views, device_ms = WORK[dose]
        few = replace(plan, ranks=RANKS, hosts=1, lone=plan.lone % RANKS)
        return replace(few, free_cores=True, views=views, device_ms=device_ms)

    def inject(self) -> Truth:
        core = self.rng.choice(sorted(os.sched_getaffinity(0)))
        ranks = tuple(range(RANKS))
        for rank in ranks:
            self.job.put_on_cores(rank, {core})
        return Truth("fault", {"cpu": frozenset({"affinity", "contended"})}, ranks, everyone=True)

    def revert(self) -> None:
        self.job.pin(self.job.lone)
