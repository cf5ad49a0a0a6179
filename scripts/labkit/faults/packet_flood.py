"""A flood of small packets reaches the host of one rank, whose core is the one that must look at them (softirq).

The flood stays within the hosts of the lab. The host has a long list of packet rules, so that a packet costs it more than
the sender: some thousands a second are enough.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.launch import Plan
from labkit.machine.hosts import INTERFACE
from labkit.machine.shell import Impossible, python, quietly, run

RULES = 16_000
MOST_HZ = 10_000.0
SENDER = """
import socket, sys, time
where, rate = (sys.argv[1], 9), float(sys.argv[2])
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
due = time.monotonic()
while True:
    for _ in range(max(1, int(rate * 0.005))):
        try:
            out.sendto(b"x" * 16, where)
        except OSError:
            pass
    due = max(due + 0.005, time.monotonic() - 0.05)
    time.sleep(max(0.0, due - time.monotonic()))
"""


class PacketFlood(Fault):
    name = "packet-flood"
    group = "cpu"
    min_hosts = 2
    # With two ranks there is no majority to say which is odd.
    needs_baseline: ClassVar[bool] = True

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        # Two ranks with a core each and much to compute: a rank that mostly waits would not notice the interrupts.
        return replace(plan, ranks=2, hosts=2, lone=rng.randrange(2), views=400, device_ms=80.0)

    def inject(self) -> Truth:
        self.victim = self.job.lone
        self._host = self.job.hosts[self.job.plan.host_of(self.victim)]
        self._other = next(host for host in self.job.hosts if host != self._host)
        (core,) = self.job.cores_of(self.victim)
        inside = self._host.namespace
        steer = f"echo {1 << core:x} > /sys/class/net/{INTERFACE}/queues/rx-0/rps_cpus"
        if not quietly("ip", "netns", "exec", inside, "sh", "-c", steer):
            raise Impossible("this kernel does not steer received packets to a core (RPS)")
        run("tc", "-n", inside, "qdisc", "add", "dev", INTERFACE, "ingress")
        rule = (
            f"filter add dev {INTERFACE} parent ffff: protocol ip prio 1 u32 match u16 {{}} 0xffff at 22 flowid 1:1\n"
        )
        with tempfile.NamedTemporaryFile("w", suffix=".tc") as batch:
            batch.writelines(rule.format(port) for port in range(10_000, 10_000 + RULES))
            batch.flush()
            run("tc", "-n", inside, "-batch", Path(batch.name))
        self._group = self.job.companion_group("flood")
        self.tune(self._flood, 2000.0, 200.0, MOST_HZ)
        return Truth(status="fault", causes={"cpu": frozenset({"irq"})}, ranks=(self.victim,))

    def _flood(self, rate_hz: float) -> None:
        self.end_started()
        command = [python(), "-I", "-c", SENDER, self._host.address, f"{rate_hz:.0f}"]
        cores = self.job.cores_of(1 - self.victim)
        self.start(command, self._group, cores, self._other)

    def revert(self) -> None:
        super().revert()
        quietly("tc", "-n", self._host.namespace, "qdisc", "delete", "dev", INTERFACE, "ingress")
        still = f"echo 0 > /sys/class/net/{INTERFACE}/queues/rx-0/rps_cpus"
        quietly("ip", "netns", "exec", self._host.namespace, "sh", "-c", still)
