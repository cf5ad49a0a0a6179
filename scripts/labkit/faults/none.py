"""No fault: whoever is accused is accused wrongly."""

from __future__ import annotations

import random
from dataclasses import replace

from labkit.faults.base import Fault, Truth
from labkit.launch import Plan
from labkit.machine.shell import python


class NoFault(Fault):
    name = "none"
    group = "healthy"
    one_dose = True

    def inject(self) -> Truth:
        return Truth(status="healthy", causes={})


BURSTS = """
import random, sys, time
draw = random.Random(int(sys.argv[1]))
share = float(sys.argv[2])
while True:
    busy = draw.uniform(0.002, 0.04)
    until = time.monotonic() + busy
    while time.monotonic() < until:
        pass
    time.sleep(busy * (1 - share) / share * draw.uniform(0.5, 1.5))
"""
PROCESSES = 3
BUSY = {
    "strong": 0.2,
    "weak": 0.12,
}  # together less than a third of two cores: more is somebody to be named (strangers.py)


class Noisy(Fault):
    """Other processes compute now and then, on all cores, which all ranks may use: all suffer alike, and nobody is guilty."""

    name = "noisy"
    group = "healthy"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return replace(plan, free_cores=True)

    def inject(self) -> Truth:
        group = self.job.companion_group("noise")
        cores = self.job.cores_of(0)
        for _ in range(PROCESSES):
            words = [BURSTS, str(self.rng.randrange(1 << 30)), str(BUSY[self.dose])]
            self.start([python(), "-I", "-c", *words], group, cores)
        return Truth(status="healthy", causes={})
