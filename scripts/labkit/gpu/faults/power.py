"""A GPU may draw less power than it needs: its cap was lowered, or the power supply asks for less (power brake)."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import HW_SLOWDOWN, MAX_CLOCK_HZ, POWER_BRAKE, GpuFault

IDLE_W = 90.0
# Watts that the job's kernels draw at full clock, in addition to the idle power (sim/state.c).
SPAN_W = 437.0


class PowerCap(GpuFault):
    name = "gpu-power"

    def inject(self) -> Truth:
        # The clock follows from the cap: the machine's physics, not the fault, lowers it and sets the reason.
        self.gpu.set(power_cap_w=round(IDLE_W + self.share * SPAN_W))
        return self.truth({"gpu": {"throttled-power"}}, self.gpu_name)


class PowerBrake(GpuFault):
    name = "gpu-brake"

    def inject(self) -> Truth:
        self.gpu.set(clock_hz=self.share * MAX_CLOCK_HZ, throttle_reasons=POWER_BRAKE | HW_SLOWDOWN)
        return self.truth({"gpu": {"throttled-power"}}, self.gpu_name)
