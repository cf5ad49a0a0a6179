"""Counters move here and there, as they do on any cluster, and nothing is slower for it: whoever is accused is accused wrongly."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault
from labkit.gpu.launch import RANKS


class Harmless(GpuFault):
    name = "harmless"
    group = "healthy"

    def inject(self) -> Truth:
        # A GPU that corrects an error now and then, another that is warmer than the rest, a port with a rare symbol error.
        self.gpu.set(ecc_corrected_hz=self.rng.uniform(0.1, 0.5))
        self.nic.set(symbol_error_hz=self.rng.uniform(0.05, 0.3))
        warm = self.altered_gpu((self.victim + self.rng.randrange(1, RANKS)) % RANKS)
        warm.set(temperature_c=self.rng.uniform(74, 79))
        return Truth(status="healthy", causes={})
