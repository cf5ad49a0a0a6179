"""One host's way to the others is slow: its own link, what lies behind it, or packets that get lost.

With two hosts there is one path, and no telling which end is slow: three at least.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.faults.base import Fault, Truth
from labkit.machine import hosts
from labkit.machine.hosts import INTERFACE

# Strong: a tenth of the rate, as when a port falls back from 100 to 10 Gbit/s.
SHARES = {"strong": 0.1, "weak": 0.4}


class SlowLink(Fault):
    """The link of one host is shaped to less than its nominal rate, in both directions; the shaper is on the host."""

    name = "slow-link"
    group = "network"
    min_hosts = 3

    def inject(self) -> Truth:
        self.host = self.job.hosts[self.rng.randrange(len(self.job.hosts))]
        self._strike()
        return self._truth()

    def _strike(self) -> None:
        self.host.shape(SHARES[self.dose])

    def _truth(self) -> Truth:
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


class SlowFabric(SlowLink):
    """The switch carries less to and from one host; no shaper is seen anywhere, only how fast bytes move."""

    name = "slow-fabric"
    min_hosts = 4

    def _strike(self) -> None:
        hosts.slow_in_fabric(self.job.hosts, self.host, SHARES[self.dose])

    def revert(self) -> None:
        hosts.heal_fabric(self.job.hosts)


class PacketLoss(SlowLink):
    """The switch drops some of the packets from and to one host, by lot."""

    name = "packet-loss"
    least, most = 0.003, 0.2
    tuning_s = 6.0  # about one step in eight loses a packet: fewer seconds would measure chance

    def _strike(self) -> None:
        self.tune(self.host.lose, {"strong": 0.02, "weak": 0.008}[self.dose], self.least, self.most)

    def revert(self) -> None:
        self.host.lose(0.0)


class CutOff(PacketLoss):
    """The switch drops every packet from and to one host; its link stays up, and no process fails before its own timeout."""

    name = "cut-off"
    one_dose = True
    # TCP doubles its waiting time with each failed try: after the cut the job needs too long to go on.
    spoils = True

    def _strike(self) -> None:
        self.host.lose(1.0)

    def _truth(self) -> Truth:
        return replace(super()._truth(), status="hang", causes={"network": frozenset({"loss"})}, exact=True)
