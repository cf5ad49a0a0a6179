"""Something that is so on all ranks: nobody is odd, only a window of the healthy job tells.

slow-everywhere: python/slow-function with all ranks is a right answer too: the function is what must be looked at.
bigger-model: whichever function grew, or none; the cause must be said.
"""

from __future__ import annotations

from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.launch import Plan
from labkit.programs import PROGRAMS
from labkit.step_times import read

_CAUSE = {"workload": frozenset({"slow-everywhere"})}
WIDTH = {"strong": 640, "weak": 448}
USUAL_WIDTH = 384
STEPS_AHEAD = 12


def _all_ranks(plan: Plan) -> tuple[int, ...]:
    return tuple(range(plan.ranks))


class SlowEverywhere(Fault):
    """One function is slow on every rank, as after a change of the code."""

    name = "slow-everywhere"
    group = "everywhere"
    needs_baseline: ClassVar[bool] = True

    def inject(self) -> Truth:
        function = self.rng.choice(PROGRAMS[self.job.plan.program].functions)
        ranks = _all_ranks(self.job.plan)
        for rank in ranks:
            # Slow by sleeping: eight ranks that compute more would not fit on two cores.
            self.job.order(rank, {"function": function, "manner": "sleep", "seconds": self.added_s})
        causes = {"python": frozenset({"slow-function", "blocking-call"})}
        there = Truth("fault", causes, ranks, function=function, everyone=True)
        return Truth("fault", _CAUSE, ranks, function=function, everyone=True, alternatives=(there,))


class BiggerModel(Fault):
    """The model becomes wider, from one step on: more to reduce, more to compute, on the device as well."""

    name = "bigger-model"
    group = "everywhere"
    needs_baseline: ClassVar[bool] = True
    spoils: ClassVar[bool] = True

    def inject(self) -> Truth:
        width = WIDTH[self.dose]
        reached = max(read(self.job.folder / f"rank{rank}.steps")[-1].step for rank in _all_ranks(self.job.plan))
        device_s = self.job.plan.device_ms / 1000
        # A wider model has gradients that grow with the square of the width: they lengthen the exchange. The rest of the dose goes
        # to the time on the device.
        exchange_s = max(0.0, self.healthy.step_s - device_s - max(self.healthy.own_s))
        left_s = self.added_s - exchange_s * ((width / USUAL_WIDTH) ** 2 - 1)
        device = 1 + max(0.05 * device_s, left_s) / device_s
        for rank in _all_ranks(self.job.plan):
            self.job.order(rank, {"width": width, "device": device, "at": reached + STEPS_AHEAD})
        self.wait_for_step(reached + STEPS_AHEAD + 2)
        return Truth("fault", _CAUSE, _all_ranks(self.job.plan), everyone=True, exact=True)

    def wait_for_step(self, step: int) -> None:
        import time

        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and read(self.job.folder / "rank0.steps")[-1].step < step:
            self.job.check_alive()
            time.sleep(0.2)

    def revert(self) -> None:
        """The model stays as it is: the job is spoiled."""
