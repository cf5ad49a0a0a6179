"""A GPU is too hot and lowers its clock: the driver's own limit, or the hardware's at the slow-down threshold."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import HW_SLOWDOWN, HW_THERMAL, MAX_CLOCK_HZ, SW_THERMAL, GpuFault


class Thermal(GpuFault):
    name = "gpu-thermal"

    def inject(self) -> Truth:
        hardware = self.rng.random() < 0.5
        self.gpu.set(
            clock_hz=self.share * MAX_CLOCK_HZ,
            throttle_reasons=HW_THERMAL | HW_SLOWDOWN if hardware else SW_THERMAL,
            temperature_c=self.rng.uniform(87, 92) if hardware else self.rng.uniform(83, 87),
        )
        return self.truth({"gpu": {"throttled-thermal"}}, self.gpu_name, culprit="hardware" if hardware else "software")
