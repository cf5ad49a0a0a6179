"""Name the host that a rank's data comes from over a connection: an object store, a cache, a registry.

From the connection that a wait names, else from the one host outside the job that sends the rank
far more than it gets. Ranks' own hosts and the loopback are no such hosts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.observer.window.schema import SOCKET_TO
from rankscope.observer.window.store.summary import address_of
from rankscope.probes.base.arrays import Ints

SOCKET_WAITS = frozenset({"recv", "poll", "select", "epoll", "read", "socket", "connect"})


@dataclass(frozen=True, slots=True)
class ObjectHost:
    """A host outside the job from which a rank's data comes, with the round trip to it.

    `peers_rtt_s`: the round trip that other ranks see, NaN if none is connected to it.
    """

    address: str
    received_bytes: float
    rtt_s: float
    peers_rtt_s: float

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence of where the data comes from, how much, and how long a round trip is."""
        told = [Evidence("connections", "its data comes from", self.address, None, "")]
        if self.received_bytes:
            told.append(Evidence("connections", f"received from {self.address}", self.received_bytes, None, "bytes"))
        if np.isfinite(self.rtt_s):
            usual = self.peers_rtt_s if np.isfinite(self.peers_rtt_s) else None
            told.append(Evidence("connections", f"round trip to {self.address}", self.rtt_s, usual, "s"))
        return tuple(told)


def object_host(fleet: Fleet, row: int, detail: str) -> ObjectHost | None:
    """Find the host outside the job that a rank (row) waits for; None if it is not clear.

    `detail`: of the wait, which may name the connection.
    """
    inside = {_plain(address) for addresses in fleet.ranks.addresses for address in addresses}
    if SOCKET_TO in detail:
        peer = address_of(detail.partition(SOCKET_TO)[2])
        if not _is_outside(peer, inside):
            return None
    elif not (peer := _feeding(fleet, row, inside)):
        return None
    flows = fleet.flows
    there = np.array([flow for flow, one in enumerate(flows.peer) if one == peer], dtype=np.int64)
    mine = flows.rank[there] == row
    received = float(flows.received_bytes[there[mine]].sum())
    return ObjectHost(peer, received, _middle(fleet, there[mine]), _middle(fleet, there[~mine]))


def _feeding(fleet: Fleet, row: int, inside: Collection[str]) -> str:
    """Return the host outside the job that sends nearly all that the rank (row) gets from outside; '' without one.

    Also '' where the rank sends it about as much. `inside`: addresses of the job's hosts.
    """
    flows = fleet.flows
    received: dict[str, float] = {}
    sent: dict[str, float] = {}
    for flow in np.flatnonzero(flows.rank == row).tolist():
        peer = flows.peer[flow]
        if _is_outside(peer, inside):
            received[peer] = received.get(peer, 0.0) + float(flows.received_bytes[flow])
            sent[peer] = sent.get(peer, 0.0) + float(flows.sent_bytes[flow])
    if not received:
        return ""
    peer = max(received, key=lambda one: received[one])
    # A service that is asked in vain answers as shortly as it is asked.
    fed = received[peer] > limits.OTHER_KIND * sent[peer]
    return peer if fed and received[peer] >= limits.NEARLY_ALL * sum(received.values()) else ""


def _middle(fleet: Fleet, flows: Ints) -> float:
    """Return the median round trip of these flows, in seconds; NaN if unknown."""
    times = fleet.flows.rtt_s[flows]
    times = times[np.isfinite(times)]
    return float(np.median(times)) if len(times) else float("nan")


def _plain(address: str) -> str:
    """Return an IP address in its standard form, as IPv4 where IPv6 carries one; other text as it is."""
    try:
        known = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return address
    mapped = known.ipv4_mapped if isinstance(known, ipaddress.IPv6Address) else None
    return str(mapped or known)


def _is_outside(address: str, inside: Collection[str]) -> bool:
    """Return whether it is an address of another host outside the job; `inside`: addresses of the job's hosts."""
    try:
        known = ipaddress.ip_address(_plain(address))
    except ValueError:
        return False
    return str(known) not in inside and not (known.is_loopback or known.is_unspecified)
