"""A rank is niced while a process in its own container computes: the rank gives way to it."""

from __future__ import annotations

import contextlib
import math
import os

from labkit.faults.base import Fault, Truth, busy_program
from labkit.faults.cpu_hog import SHARE_OF_NEED

# Each level of niceness is a weight 1.25 times less (sched_prio_to_weight of the kernel).
_WEIGHT_PER_LEVEL = 1.25
_MOST = 19


class Reniced(Fault):
    """The same container, because niceness counts only among the processes of one control group."""

    name = "reniced"
    group = "cpu"

    def inject(self) -> Truth:
        # As for cpu-hog, only the rank that has a core for itself.
        self.victim = self.job.lone
        name = "sidecar-scan"
        program = busy_program(self.job.folder, name)
        cores = self.job.cores_of(self.victim)
        self.start([program], self.job.groups[self.victim], cores)
        share = SHARE_OF_NEED * self.healthy.cpu_s[self.victim] / (self.healthy.step_s + self.extra_s)
        self.tune(self._outweigh, (1 - share) / share, _WEIGHT_PER_LEVEL, _WEIGHT_PER_LEVEL**_MOST)
        return Truth(status="fault", causes={"cpu": frozenset({"contended"})}, ranks=(self.victim,), culprit=name)

    def _outweigh(self, times: float) -> None:
        """Make the sidecar's weight so many times the rank's."""
        self._nice(min(_MOST, max(1, round(math.log(times, _WEIGHT_PER_LEVEL)))))

    def _nice(self, level: int) -> None:
        for thread in self.job.threads_of(self.victim):
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, level)

    def revert(self) -> None:
        super().revert()
        self._nice(0)
