"""Somebody locked a GPU's clock (nvidia-smi -lgc) and left it so: neither hot nor short of power, only slow."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import MAX_CLOCK_HZ, GpuFault


class ClockLow(GpuFault):
    name = "gpu-clock"

    def inject(self) -> Truth:
        # Clocks come in steps of 15 MHz.
        self.gpu.set(clock_limit_hz=round(self.share * MAX_CLOCK_HZ / 15e6) * 15e6)
        return self.truth({"gpu": {"clock-low"}}, self.gpu_name)
