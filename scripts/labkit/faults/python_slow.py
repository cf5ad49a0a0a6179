"""One Python function of one rank takes longer, by computing or by sleeping."""

from __future__ import annotations

import math
import random
from typing import ClassVar

from labkit.faults.base import TUNED, TUNING_ROUNDS, Fault, Truth
from labkit.launch import Plan
from labkit.programs import PROGRAMS


class PythonSlow(Fault):
    name = "python-slow"
    group = "python"
    exact: ClassVar[bool] = False  # whether the cause is asked for, too

    _seconds: float | None = None  # found once, kept when it is injected again
    _choice: tuple[str, str] | None = None

    def inject(self) -> Truth:
        if self._seconds is None and self.tunes:
            return self._tuned()
        return self.slow_down(self._seconds or self.extra_s)

    def _tuned(self) -> Truth:
        """The others are late now and then, and a rank with a core for itself has time in hand: by the job's own times."""
        seconds, truth = self.extra_s, self.slow_down(self.extra_s)
        for _ in range(TUNING_ROUNDS - 1):
            gained = self.gained_s()
            if math.isfinite(gained) and TUNED[0] <= self.added_s / max(gained, 1e-3) <= TUNED[1]:
                break
            seconds = max(seconds + self.added_s - min(gained, 2 * self.added_s), 0.5 * self.added_s)
            truth = self.slow_down(seconds)
        self._seconds = seconds
        return truth

    def slow_down(self, seconds: float, **more: object) -> Truth:
        self._choice = self._choice or (
            self.rng.choice(PROGRAMS[self.job.plan.program].functions),
            self.rng.choice(("busy", "sleep")),
        )
        function, manner = self._choice
        self.job.order(self.victim, {"function": function, "manner": manner, "seconds": seconds, **more})
        causes = {"busy": {"slow-function"}, "sleep": {"slow-function", "blocking-call"}}[manner]
        answer = {"python": frozenset(causes)}
        return Truth("fault", answer, (self.victim,), function=function, culprit=manner, exact=self.exact)


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
