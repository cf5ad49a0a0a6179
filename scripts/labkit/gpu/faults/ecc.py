"""A GPU's memory corrects errors all the time, and its kernels wait for the repeated reads."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault


class EccStorm(GpuFault):
    name = "gpu-ecc"

    def inject(self) -> Truth:
        self.gpu.set(ecc_corrected_hz=self.rng.uniform(50, 2000), speed=self.share)
        return self.truth({"gpu": {"ecc-errors"}}, self.gpu_name)
