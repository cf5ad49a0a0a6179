"""A GPU's kernels take longer and no counter says why: the honest answer is gpu/slow."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault


class SlowKernels(GpuFault):
    name = "gpu-slow"

    def inject(self) -> Truth:
        self.gpu.set(speed=self.share)
        return self.truth({"gpu": {"slow"}}, self.gpu_name)
