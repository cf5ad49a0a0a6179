"""A rank is short of memory, or asks the kernel for too much of it.

memory-limit: the control group's limit leaves no room for a table that the rank maps from disk; its pages are reclaimed and
read again. memory/reclaim, memory/page-faults and memory/swap are one component, and the cause is counted apart. That the
lookups (look_up) are slow on this rank is not taken as right: the code is the same everywhere.

page-faults: buffers are allocated anew in every step instead of being kept. The function that does so (stage_buffers) is a
right answer too: it is where the code must be changed.
"""

from __future__ import annotations

import random

from labkit.faults.base import LOOKUPS, Fault, Truth, equipped
from labkit.launch import Plan
from labkit.machine.disk import TABLE_BYTES

# What one page read from the disk takes, seconds: where tuning begins.
PAGE_S = 50e-6
# Room for what a rank cannot do without, bytes.
ROOM = 6 << 20


class MemoryLimit(Fault):
    name = "memory-limit"
    group = "memory"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return equipped(plan)

    def inject(self) -> Truth:
        self._used, self._cache = self.job.groups[self.victim].memory_bytes()
        self.tune(self._take_away, min(0.9, self.extra_s / (LOOKUPS * PAGE_S)), 0.05, 1.0)
        causes = frozenset({"reclaim", "page-faults", "swap"})
        return Truth(status="fault", causes={"memory": causes}, ranks=(self.victim,))

    def _take_away(self, share: float) -> None:
        """Leave no room for this share of the table."""
        table = min(TABLE_BYTES, self._cache)
        self.job.groups[self.victim].limit_memory(int(self._used - self._cache + ROOM + (1 - share) * table))

    def revert(self) -> None:
        self.job.groups[self.victim].limit_memory(None)


class PageFaults(Fault):
    name = "page-faults"
    group = "memory"

    def inject(self) -> Truth:
        self.job.order(self.victim, {"scratch_s": self.extra_s})
        return Truth(
            "fault", {"memory": frozenset({"page-faults"})}, (self.victim,), function="stage_buffers", exact=True
        )
