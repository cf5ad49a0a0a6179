"""A GPU falls off the bus in the middle of the window: NVML says so, its rank hangs or dies, all others wait."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import INTO_WINDOW_S, GpuFault


class Lost(GpuFault):
    name = "gpu-lost"
    spoils = True

    def inject(self) -> Truth:
        # The rank may get an error from CUDA, and end.
        self.gpu_job.expect_the_end_of(self.victim)
        self.later(self.rng.uniform(*INTO_WINDOW_S), self._strike)
        return self.truth({"gpu": {"lost", "xid"}}, self.gpu_name, status="hang")

    def _strike(self) -> None:
        self.gpu.report_xid(79)
        self.gpu.set(lost=True)
