"""The link of one host is shaped to less than its nominal rate, in both directions."""

from labkit.faults.base import Fault, Truth
from labkit.hosts import INTERFACE

# A tenth is what a port that fell back from 100 to 10 Gbit/s leaves.
SHARES = {"strong": 0.1, "weak": 0.5}


class SlowLink(Fault):
    name = "slow-link"
    # With two hosts there is one path, and no telling which end is slow.
    min_hosts = 3

    def inject(self) -> Truth:
        self.host = self.job.hosts[self.rng.randrange(len(self.job.hosts))]
        self.host.shape(SHARES[self.dose])
        return Truth(
            status="fault",
            causes={
                "network": frozenset({"slow-link", "loss"}),
                "nic": frozenset({"speed-degraded", "slow"}),
            },
            ranks=self.job.plan.ranks_on(self.host.number),
            whole_host=True,
            node=self.host.node,
            culprit=INTERFACE,
        )

    def revert(self) -> None:
        self.host.shape(1.0)
