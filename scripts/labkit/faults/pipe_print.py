"""A rank prints to a pipe, and whoever reads the pipe has become slow: print blocks."""

from __future__ import annotations

import random
import time

from labkit.faults.base import REPORT_BYTES, Fault, Truth, equipped
from labkit.launch import Plan


class PipePrint(Fault):
    name = "pipe-print"
    group = "python"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return equipped(plan)

    def inject(self) -> Truth:
        # The pipe is read at the pace of one report in this many seconds, so that is how long a step takes.
        self.job.shippers[self.victim].pace_s = (self.healthy.step_s + self.added_s) / REPORT_BYTES
        # The pipe holds two reports: the rank waits only once it is full.
        time.sleep(2 * self.healthy.step_s * self.healthy.step_s / self.added_s)
        causes = frozenset({"blocking-call", "slow-function"})
        return Truth("fault", {"python": causes}, (self.victim,), function="print_report")

    def revert(self) -> None:
        self.job.shippers[self.victim].pace_s = 0.0
