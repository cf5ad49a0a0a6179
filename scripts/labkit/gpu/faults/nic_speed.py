"""A NIC's port came up at a quarter of its speed."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault


class NicSpeed(GpuFault):
    name = "nic-speed"
    group = "nic"

    def inject(self) -> Truth:
        if self.rng.random() < 0.5:
            self.nic.set(width=1)  # 1 lane of 4: the speed of a lane is as it was
        else:
            self.nic.set(speed_hz=50e9 / 4)
        return self.truth({"nic": {"speed-degraded"}}, self.nic_name)
