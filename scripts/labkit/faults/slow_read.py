"""Reads from the disk are throttled (blkio under cgroup v1, io.max under v2): of one rank, or of all."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.launch import Plan
from labkit.machine.shell import Impossible
from labkit.programs import PROGRAMS

# The kernel counts throttled bytes in slices of 0.1 s, and a reader over its limit waits for the rest of a slice. Such a wait is
# a weak dose only if the step is long.
_SLICE_S, _LONGER_MS = 0.1, 450.0


class SlowRead(Fault):
    name = "slow-read"
    group = "storage"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return replace(plan, device_ms=plan.device_ms + _LONGER_MS) if dose == "weak" else plan

    def inject(self) -> Truth:
        self._throttle((self.victim,))
        return Truth(
            status="fault",
            causes={"storage": frozenset({"slow-read", "stalled"})},
            ranks=(self.victim,),
            culprit=self.job.device_kind,
        )

    def _throttle(self, ranks: tuple[int, ...]) -> None:
        if self.job.device is None:
            raise Impossible("the lab's folder is on no block device, and no loop device could be made for it")
        device = self.job.device

        def throttle(seconds: float) -> None:
            # A reader that paused for a whole slice starts a new one; the unused part of the old one is lost.
            rate = int(self.job.plan.sample_bytes / seconds)
            for rank in ranks:
                self.job.groups[rank].limit_reads(device, rate)

        self.tune(throttle, max(_SLICE_S, self.extra_s if len(ranks) == 1 else self.added_s), 0.02, 2.0)

    def revert(self) -> None:
        if self.job.device is not None:
            for group in self.job.groups[: self.job.plan.ranks]:
                group.limit_reads(self.job.device, None)


class SlowFolder(SlowRead):
    """The folder that all ranks read from is slow for all of them: nobody is odd, only the baseline tells.

    That every step is slow everywhere because of the function that reads, or of read (the system call in it), is
    a right answer too: it leads to the same folder.
    """

    name = "slow-folder"
    needs_baseline: ClassVar[bool] = True

    def inject(self) -> Truth:
        ranks = tuple(range(self.job.plan.ranks))
        self._throttle(ranks)
        everywhere = frozenset({"slow-everywhere"})
        there = tuple(
            Truth("fault", {"workload": everywhere}, ranks, everyone=True, function=name)
            for name in (PROGRAMS[self.job.plan.program].reads, "read")
        )
        causes = frozenset({"slow-read", "stalled"})
        return Truth("fault", {"storage": causes}, ranks, everyone=True, alternatives=there)
