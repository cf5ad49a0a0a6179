"""One link of the machine: PCI Express, NVLink, a network port, or the rail behind it."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault
from labkit.gpu.launch import PER_HOST, RANKS

NVLINKS = 18
NVLINKS_LEFT = {"strong": (0, 2), "weak": (3,)}
# By dose: lanes (of 16) and generation (of 5) that are left.
PCIE_LINKS = {"strong": ((8, 5), (8, 5), (4, 5), (16, 3)), "weak": ((16, 4), (8, 5))}


class NvlinkDown(GpuFault):
    """Most links of one GPU are down."""

    name = "nvlink-down"
    group = "nvlink"

    def inject(self) -> Truth:
        # A few links down are not felt: a ring that also crosses NICs needs six of them. With four left the exchange still hides
        # behind the backward pass (5 % of the step, measured). With none, the traffic goes over PCIe.
        left = self.rng.choice(NVLINKS_LEFT[self.dose])
        self.gpu.set(nvlink_active=sum(1 << link for link in self.rng.sample(range(NVLINKS), left)))
        return self.truth({"nvlink": {"down"}}, self.gpu_name)


class NvlinkErrors(GpuFault):
    """The links of one GPU repeat most of what they send."""

    name = "nvlink-errors"
    group = "nvlink"
    shares = {"strong": (0.08, 0.18), "weak": (0.25, 0.3)}  # of 450 GB/s; the job needs a third  # noqa: RUF012

    def inject(self) -> Truth:
        self.gpu.set(nvlink_error_hz=self.rng.uniform(100, 5000), nvlink_rate_factor=self.share)
        return self.truth({"nvlink": {"errors"}}, self.gpu_name)


class PcieWidth(GpuFault):
    """Fewer lanes or an older generation than it could have."""

    name = "pcie-width"
    group = "pcie"

    def inject(self) -> Truth:
        width, generation = self.rng.choice(PCIE_LINKS[self.dose])
        self.gpu.set(pcie_width=width, pcie_gen=generation)
        return self.truth({"pcie": {"link-degraded"}}, *self.pci_names, self.gpu_name)


class PcieReplays(GpuFault):
    """Packets that are sent again."""

    name = "pcie-replays"
    group = "pcie"
    shares = {"strong": (0.25, 0.5), "weak": (0.7, 0.8)}  # noqa: RUF012

    def inject(self) -> Truth:
        self.gpu.set(pcie_replay_hz=self.rng.uniform(100, 3000), pcie_rate_factor=self.share)
        return self.truth({"pcie": {"errors"}}, *self.pci_names, self.gpu_name)


class NicSpeed(GpuFault):
    """A port came up at a quarter of its speed."""

    name = "nic-speed"
    group = "nic"

    def inject(self) -> Truth:
        if self.rng.random() < 0.5:
            self.nic.set(width=1)  # 1 lane of 4: the speed of a lane is as it was
        else:
            self.nic.set(speed_hz=50e9 / 4)
        return self.truth({"nic": {"speed-degraded"}}, self.nic_name)


class NicFlap(GpuFault):
    """A port goes down and comes up again, every few seconds."""

    name = "nic-flap"
    group = "nic"

    def inject(self) -> Truth:
        self.nic.set(flapping_hz=self.rng.uniform(0.3, 0.8), rate_factor=self.rng.uniform(0.3, 0.6))
        # Whoever looks sees a port that is down now and then, and counters of the link's errors.
        return self.truth({"nic": {"down", "errors"}}, self.nic_name)


class NicErrors(GpuFault):
    """A bad cable: symbol and CRC errors on a port, and its packets are sent again."""

    name = "nic-errors"
    group = "nic"
    shares = {"strong": (0.2, 0.45), "weak": (0.6, 0.7)}  # noqa: RUF012

    def inject(self) -> Truth:
        kind = self.rng.choice(("symbol_error_hz", "crc_error_hz"))
        self.nic.set(rate_factor=self.share, retransmit_hz=self.rng.uniform(50, 2000))
        self.nic.set(**{kind: self.rng.uniform(50, 5000)})
        return self.truth({"nic": {"errors"}}, self.nic_name, culprit=kind.removesuffix("_hz"))


class SlowRail(GpuFault):
    """One link between the hosts is slow beyond the NICs: no counter of these hosts moves."""

    name = "slow-rail"
    group = "network"
    shares = {"strong": (0.2, 0.4), "weak": (0.5, 0.7)}  # noqa: RUF012

    def inject(self) -> Truth:
        self.nic.set(link_rate_factor=self.share)
        # A link has two ends, and with two hosts there is no telling which is at fault: naming either is right.
        ends = tuple(rank for rank in range(RANKS) if rank % PER_HOST == self.victim % PER_HOST)
        return Truth(
            status="fault",
            # From a host a slow port and a slow link behind it look alike: the NIC says full speed, and is slow.
            causes={"network": frozenset({"slow-link"}), "nic": frozenset({"slow"})},
            ranks=ends,
            whole_host=True,
            instances=frozenset(f"mlx5_{rank}" for rank in ends),
            exact=True,
        )
