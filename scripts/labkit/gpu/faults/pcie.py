"""The PCI Express link of one GPU: fewer lanes or an older generation than it could have, or packets that are replayed."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault

# By dose: lanes (of 16) and generation (of 5) that are left.
LINKS = {"strong": ((8, 5), (8, 5), (4, 5), (16, 3)), "weak": ((16, 4), (8, 5))}


class PcieWidth(GpuFault):
    name = "pcie-width"
    group = "pcie"

    def inject(self) -> Truth:
        width, generation = self.rng.choice(LINKS[self.dose])
        self.gpu.set(pcie_width=width, pcie_gen=generation)
        return self.truth({"pcie": {"link-degraded"}}, *self.pci_names, self.gpu_name)


class PcieReplays(GpuFault):
    name = "pcie-replays"
    group = "pcie"
    shares = {"strong": (0.25, 0.5), "weak": (0.7, 0.8)}  # noqa: RUF012

    def inject(self) -> Truth:
        self.gpu.set(pcie_replay_hz=self.rng.uniform(100, 3000), pcie_rate_factor=self.share)
        return self.truth({"pcie": {"errors"}}, *self.pci_names, self.gpu_name)
