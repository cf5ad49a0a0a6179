"""Batches come late on one rank, because its loader workers are slow or too few.

The cause python/dataloader is asked for. What the workers do (collate; fetch) is as good an answer where they are slow: it
is the place of the code that must be changed.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

from labkit.faults.base import Fault, Truth
from labkit.launch import Plan
from labkit.programs import PROGRAMS

FEW, ENOUGH = 1, 3
RESTART_S = 2.0


class SlowCollate(Fault):
    """The one worker of this rank takes longer in collate than a step takes; it computes, or it sleeps."""

    name = "slow-collate"
    group = "python"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return replace(plan, workers=1)

    def inject(self) -> Truth:
        # A worker makes the next batch while the rank trains on this one: only the time beyond one step delays the rank.
        manner, function = self.rng.choice(("busy", "sleep")), PROGRAMS[self.job.plan.program].makes_batch

        def delay(seconds: float) -> None:
            longer = self.healthy.step_s + seconds - WORKER_S
            self.job.order(self.victim, {"function": function, "manner": manner, "seconds": longer})

        self.tune(delay, self.added_s, 0.01, 1.0)
        return _truth(self.victim, function, manner)


class FewWorkers(Fault):
    """The store of the samples answers late, for everybody; three workers hide that, and one rank has only one."""

    name = "few-workers"
    group = "python"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        ranks = min(plan.ranks, 4)
        return replace(plan, workers=ENOUGH, ranks=ranks, hosts=min(plan.hosts, ranks), lone=plan.lone % ranks)

    def inject(self) -> Truth:
        def delay(seconds: float) -> None:
            for rank in range(self.job.plan.ranks):
                more = {"workers": FEW} if rank == self.victim else {}
                self.job.order(rank, {"fetch_s": self.healthy.step_s + seconds - WORKER_S, **more})

        # The loader is started again with fewer workers. That stalls the job once; wait until it is over before measuring.
        self.job.order(self.victim, {"workers": FEW})
        time.sleep(RESTART_S)
        self.tune(delay, self.added_s, 0.01, 1.0)
        return _truth(self.victim, "fetch", "sleep")


# What a worker of the healthy job needs for a batch, in addition.
WORKER_S = 0.04


def _truth(victim: int, function: str, manner: str) -> Truth:
    late = frozenset({"dataloader"})
    there = Truth(
        "fault", {"python": frozenset({"slow-function", "blocking-call"})}, (victim,), function=function, exact=True
    )
    return Truth("fault", {"python": late}, (victim,), exact=True, culprit=manner, alternatives=(there,))
