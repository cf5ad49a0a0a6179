"""One link between the hosts is slow beyond the NICs: no counter of these hosts moves."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault
from labkit.gpu.launch import PER_HOST, RANKS


class SlowRail(GpuFault):
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
