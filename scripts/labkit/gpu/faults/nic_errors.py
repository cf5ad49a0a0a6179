"""A bad cable: symbol and CRC errors on a NIC's port, and its packets are sent again."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault


class NicErrors(GpuFault):
    name = "nic-errors"
    group = "nic"
    shares = {"strong": (0.2, 0.45), "weak": (0.6, 0.7)}  # noqa: RUF012

    def inject(self) -> Truth:
        kind = self.rng.choice(("symbol_error_hz", "crc_error_hz"))
        self.nic.set(rate_factor=self.share, retransmit_hz=self.rng.uniform(50, 2000))
        self.nic.set(**{kind: self.rng.uniform(50, 5000)})
        return self.truth({"nic": {"errors"}}, self.nic_name, culprit=kind.removesuffix("_hz"))
