"""One Python function of one rank takes longer, by computing or by sleeping."""

from __future__ import annotations

import random
from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.launch import Plan

FUNCTIONS = ("tokenize", "augment", "build_mask", "collate", "log_metrics")


class PythonSlow(Fault):
    name = "python-slow"
    group = "python"

    def inject(self) -> Truth:
        return self.slow_down(self.extra_s)

    def slow_down(self, seconds: float, **more: object) -> Truth:
        function = self.rng.choice(FUNCTIONS)
        manner = self.rng.choice(("busy", "sleep"))
        self.job.order(self.victim, {"function": function, "manner": manner, "seconds": seconds, **more})
        causes = {"busy": {"slow-function"}, "sleep": {"slow-function", "blocking-call"}}[manner]
        return Truth(
            status="fault",
            causes={"python": frozenset(causes)},
            ranks=(self.victim,),
            function=function,
            culprit=manner,
        )

    def revert(self) -> None:
        self.job.order(self.victim, None)


class Every50th(PythonSlow):
    """Slow in every 50th step only, by fifty times as much: the mean grows as usual, the median not at all.

    The job steps fast (about 30 ms), so that two windows hold a dozen of those steps.
    """

    name = "every-50th"
    windows: ClassVar[float] = 2.0
    every: ClassVar[int] = 50

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return quick(plan)

    def inject(self) -> Truth:
        return self.slow_down(self.added_s * self.every, every=self.every)


def quick(plan: Plan) -> Plan:
    """The same job with little to do in each step, on four ranks at most: more of them fill two cores."""
    from dataclasses import replace

    ranks = min(plan.ranks, 4)
    return replace(
        plan, ranks=ranks, hosts=min(plan.hosts, ranks), lone=plan.lone % ranks, device_ms=10.0, views=20,
        sample_bytes=128 << 10,
    )  # fmt: skip
