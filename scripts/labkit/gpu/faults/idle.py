"""Jobs whose hosts keep their GPUs idle, from their start: nobody differs, and most of a step would come back."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.gpu.launch import GpuPlan
from labkit.launch import Plan

# So small that to read and to make them is no waste.
_SAMPLE_BYTES = 1 << 16
_SMALL = ("--gradient-mb", "10", "--batch-mb", "10")


class LaunchBound(Fault):
    """Kernels so small that the host launches them more slowly than the GPU computes them."""

    name = "launch-bound"
    group = "idle"
    one_dose: ClassVar[bool] = True
    arguments: ClassVar[tuple[str, ...]] = ("--layers", "4000", "--compute-ms", "10")
    place: ClassVar[str] = "launch"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        """Two ranks: each wants a CPU of its own."""
        assert isinstance(plan, GpuPlan)
        few = replace(plan, ranks=2, hosts=1, lone=0, sync_every=1)
        return replace(few, arguments=(*cls.arguments, *_SMALL), gpu_sample_bytes=_SAMPLE_BYTES)

    def inject(self) -> Truth:
        ranks = tuple(range(self.job.plan.ranks))
        causes = {"gpu": frozenset({self.name})}
        return Truth("inefficient", causes, ranks, function=self.place, everyone=True, exact=True)


class Synchronised(LaunchBound):
    """The host waits for its GPU behind every layer, as `assert not x.isnan().any()` does."""

    name = "synchronised"
    arguments = ("--layers", "20", "--layer-host-ms", "1", "--compute-ms", "80", "--check-every", "1")
    place = "synchronize"
