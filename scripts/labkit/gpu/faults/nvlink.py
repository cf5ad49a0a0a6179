"""NVLink of one GPU: most links are down, or the links repeat most of what they send."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault

LINKS = 18
LINKS_LEFT = {"strong": (0, 2), "weak": (3,)}


class NvlinkDown(GpuFault):
    name = "nvlink-down"
    group = "nvlink"

    def inject(self) -> Truth:
        # A few links down are not felt: a ring that also crosses NICs needs six of them. With four left the exchange still hides
        # behind the backward pass (5 % of the step, measured). With none, the traffic goes over PCIe.
        left = self.rng.choice(LINKS_LEFT[self.dose])
        self.gpu.set(nvlink_active=sum(1 << link for link in self.rng.sample(range(LINKS), left)))
        return self.truth({"nvlink": {"down"}}, self.gpu_name)


class NvlinkErrors(GpuFault):
    name = "nvlink-errors"
    group = "nvlink"
    shares = {"strong": (0.08, 0.18), "weak": (0.25, 0.3)}  # of 450 GB/s; the job needs a third  # noqa: RUF012

    def inject(self) -> Truth:
        self.gpu.set(nvlink_error_hz=self.rng.uniform(100, 5000), nvlink_rate_factor=self.share)
        return self.truth({"nvlink": {"errors"}}, self.gpu_name)
