"""A NIC's port goes down and comes up again, every few seconds."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault


class NicFlap(GpuFault):
    name = "nic-flap"
    group = "nic"

    def inject(self) -> Truth:
        self.nic.set(flapping_hz=self.rng.uniform(0.3, 0.8), rate_factor=self.rng.uniform(0.3, 0.6))
        # Whoever looks sees a port that is down now and then, and counters of the link's errors.
        return self.truth({"nic": {"down", "errors"}}, self.nic_name)
