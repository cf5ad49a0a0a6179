"""One rank's part of the checkpoint goes to disk slowly: its writes are throttled (blkio under v1, io.max under v2)."""

from __future__ import annotations

import random

from labkit.faults.base import SAVE_EVERY, Fault, Truth, equipped
from labkit.launch import Plan
from labkit.machine.shell import Impossible

BYTES = 1 << 20


class SlowCheckpoint(Fault):
    """Every fourth step saves, so that a window holds a dozen; the mean step becomes longer by what the dose says."""

    name = "slow-checkpoint"
    group = "storage"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return equipped(plan)

    def inject(self) -> Truth:
        if self.job.device is None:
            raise Impossible("the lab's folder is on no block device, and no loop device could be made for it")
        device = self.job.device

        def throttle(seconds: float) -> None:
            # The throttle lets no saved-up bytes pass after a pause, so each checkpoint is written at the limited rate from its start.
            self.job.groups[self.victim].limit_writes(device, int(BYTES / (SAVE_EVERY * seconds)))

        self.tune(throttle, self.added_s, 0.002, 2.0)
        causes = frozenset({"slow-write", "stalled"})
        return Truth(status="fault", causes={"storage": causes}, ranks=(self.victim,))

    def revert(self) -> None:
        if self.job.device is not None:
            self.job.groups[self.victim].limit_writes(self.job.device, None)
