"""Hosts of the lab: network and UTS namespaces joined by veth to a bridge in one more namespace.

The root namespace gets no interface and no address. Each host has `eth0` with an address of the benchmarking range
198.18.0.0/24, a nominal link rate (tbf on both ends of the veth), and the node name lab-host-<n>.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from labkit.machine.shell import quietly, run

PREFIX = "rslab"
SWITCH = f"{PREFIX}-switch"
UTS_FOLDER = Path("/run") / PREFIX / "uts"
NETNS_FOLDER = Path("/run/netns")
INTERFACE = "eth0"
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Host:
    """One host. `rate_mbit`: nominal rate of its link in each direction."""

    number: int
    rate_mbit: int

    @property
    def namespace(self) -> str:
        return f"{PREFIX}-host-{self.number}"

    @property
    def node(self) -> str:
        return f"lab-host-{self.number}"

    @property
    def port(self) -> str:
        return f"host{self.number}"

    @property
    def address(self) -> str:
        return f"198.18.0.{10 + self.number}"

    def build(self) -> None:
        inside = self.namespace
        _run(f"ip netns add {inside}")
        _run(f"ip -n {SWITCH} link add {self.port} type veth peer name {INTERFACE} netns {inside}")
        _run(f"ip -n {SWITCH} link set {self.port} master bridge0 up")
        _run(f"ip -n {inside} link set lo up")
        _run(f"ip -n {inside} addr add {self.address}/24 dev {INTERFACE}")
        _run(f"ip -n {inside} link set {INTERFACE} up")
        # cubic, as clusters run: bbr, the default on some hosts, paces by its own model of the link and blurs a shaped rate.
        quietly("ip", "netns", "exec", inside, "sh", "-c", "echo cubic >/proc/sys/net/ipv4/tcp_congestion_control")
        self.shape(1.0)
        UTS_FOLDER.mkdir(parents=True, exist_ok=True)
        handle = UTS_FOLDER / self.node
        handle.touch()
        _run(f"unshare --uts={handle} hostname {self.node}")

    def shape(self, share: float) -> None:
        """Let the link carry `share` of its nominal rate, in both directions."""
        kbit = round(self.rate_mbit * 1000 * share)
        # 4 ms of burst, but never under one 64 KiB segment; 50 ms of queue.
        burst = max(70_000, kbit * 1000 // 8 * 4 // 1000)
        for namespace, device in ((self.namespace, INTERFACE), (SWITCH, self.port)):
            _run(f"tc -n {namespace} qdisc replace dev {device} root tbf rate {kbit}kbit burst {burst} latency 50ms")

    def lose(self, share: float) -> None:
        """Let the switch drop this share of the packets from and to this host, by lot; 0: none.

        Packets are those of the kernel's queue: up to 64 KiB each, before they are cut to the size of the link.
        """
        quietly("tc", "-n", SWITCH, "qdisc", "delete", "dev", self.port, "clsact")
        if not share:
            return
        _run(f"tc -n {SWITCH} qdisc add dev {self.port} clsact")
        # Classic BPF: draw a random number; if it is at least the limit the packet goes on (-1), else it is dropped (2).
        limit = min(round(share * (1 << 32)), (1 << 32) - 1)
        program = f"4,32 0 0 4294963256,53 0 1 {limit},6 0 0 4294967295,6 0 0 2"
        for way in ("ingress", "egress"):
            words = f"tc -n {SWITCH} filter add dev {self.port} {way} bpf direct-action bytecode".split()
            run(*words, program)

    def enter(self) -> None:
        """Move the calling process in (between fork and exec)."""
        libc = ctypes.CDLL(None, use_errno=True)
        for path, kind in (
            (NETNS_FOLDER / self.namespace, _CLONE_NEWNET),
            (UTS_FOLDER / self.node, _CLONE_NEWUTS),
        ):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if libc.setns(handle, kind):
                raise OSError(ctypes.get_errno(), f"setns {path}")


def slow_in_fabric(hosts: list[Host], victim: Host, share: float) -> None:
    """Let the switch carry only `share` of the nominal rate to and from `victim`; nothing of it shows on any host."""
    kbit = round(victim.rate_mbit * 1000 * share)
    burst = max(70_000, kbit * 1000 // 8 * 4 // 1000)
    _run(f"tc -n {SWITCH} qdisc replace dev {victim.port} root tbf rate {kbit}kbit burst {burst} latency 50ms")
    for host in hosts:
        if host == victim:
            continue
        place = f"-n {SWITCH}"
        port = f"dev {host.port}"
        _run(f"tc {place} qdisc replace {port} root handle 1: htb default 2")
        for number, rate in ((1, kbit), (2, host.rate_mbit * 1000)):
            limits = f"rate {rate}kbit ceil {rate}kbit burst 70000 cburst 70000 quantum 60000"
            _run(f"tc {place} class replace {port} parent 1: classid 1:{number} htb {limits}")
        match = f"u32 match ip src {victim.address}/32 flowid 1:1"
        _run(f"tc {place} filter replace {port} parent 1: protocol ip prio 1 {match}")


def heal_fabric(hosts: list[Host]) -> None:
    """Undo slow_in_fabric."""
    for host in hosts:
        _run(f"tc -n {SWITCH} qdisc delete dev {host.port} root")
        host.shape(1.0)


def build(count: int, rate_mbit: int) -> list[Host]:
    """Make a switch and `count` hosts on it."""
    _run(f"ip netns add {SWITCH}")
    _run(f"ip -n {SWITCH} link add bridge0 type bridge")
    _run(f"ip -n {SWITCH} link set bridge0 up")
    hosts = [Host(number, rate_mbit) for number in range(count)]
    for host in hosts:
        host.build()
    return hosts


def remove_all() -> int:
    """Remove every namespace of the lab; how many there were. Interfaces go with their namespaces."""
    count = 0
    for path in sorted(NETNS_FOLDER.glob(f"{PREFIX}-*")):
        quietly("ip", "netns", "delete", path.name)
        count += 1
    for handle in sorted(UTS_FOLDER.glob("*")):
        quietly("umount", handle)
        handle.unlink(missing_ok=True)
        count += 1
    return count


def _run(command: str) -> None:
    """Run a command whose words are the lab's own names, without spaces in them."""
    run(*command.split())
