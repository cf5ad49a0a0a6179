"""Read the network interfaces of one network namespace: counters, speed, state, addresses.

In: rtnetlink (RTM_GETLINK, RTM_GETADDR) and the ethtool ioctl, both on sockets opened inside the
namespace, so that a container's own interfaces are seen; /proc/PID/net/dev where netlink is
refused, and /sys/class/net for the own namespace. Out: Interfaces.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from rankscope.probes.base.growth import grown
from rankscope.probes.host.procfs import ROOT, number, proc_path, read_file, reason
from rankscope.probes.network import ethtool, netlink

RTM_GETLINK, RTM_GETADDR = 18, 22
_IFLA_IFNAME, _IFLA_MTU, _IFLA_OPERSTATE, _IFLA_STATS64 = 3, 4, 16, 23
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
# struct rtnl_link_stats64: packets, bytes, errors, dropped, each received then sent, come first.
_STATS = struct.Struct("=8Q")
# Per network namespace, 10,000 addresses: anyone can create a namespace with any number of them,
# and each is stored for the whole window.
_ADDRESSES_MOST_BYTES = 1 << 20
_IFINFO, _IFADDR = struct.Struct("=BBHiII"), struct.Struct("=BBBBi")


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """Counters of one interface since it was made, or between two samples."""

    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


_COUNTERS = tuple(field.name for field in fields(InterfaceCounters) if field.name != "name")


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface. `speed_hz` is bytes per second, 0 where the driver does not say (virtual
    ones).
    """

    index: int
    name: str
    mtu: int
    state: str
    speed_hz: float
    addresses: tuple[str, ...]
    counters: InterfaceCounters


@dataclass(frozen=True, slots=True)
class Interfaces:
    """The interfaces of the network namespace of `pid`, at `time_s` (CLOCK_MONOTONIC)."""

    pid: int
    time_s: float
    interfaces: tuple[Interface, ...]
    missing: tuple[str, ...]

    def carriers(self) -> Carriers:
        """Index the interfaces' names by address; of several with the same address the first."""
        found: dict[str, str] = {}
        for interface in self.interfaces:
            for address in interface.addresses:
                found.setdefault(address, interface.name)
        return Carriers(found)


@dataclass(frozen=True, slots=True)
class Carriers:
    """Names of interfaces by address, of which a namespace may have hundreds of thousands."""

    by_address: Mapping[str, str]

    def carrying(self, address: str) -> str:
        """Return the interface that has an address ('10.0.0.1', also with ':port'); '' where none has it.

        'lo' for loopback addresses that none lists.
        """
        bare = address_of(address)
        loopback = "lo" if bare.startswith("127.") or bare == "::1" else ""
        return self.by_address.get(bare, loopback)


def read_interfaces(pid: int | None = None, root: Path = ROOT, speeds: bool = True) -> Interfaces:
    """Read the interfaces of the network namespace of a process (own: None). Never raises.

    `speeds`: read the link speed of each too, by a call of its driver.
    """
    missing: list[str] = []
    found: tuple[Interface, ...] = ()
    if root == ROOT:
        try:
            found = _ask_netlink(pid, root, missing)
            if speeds:
                found = _with_speeds(found, pid, root, missing)
        except OSError as error:
            missing.append(f"interfaces of pid {pid or 'self'} by netlink: {reason(error)}")
    if not found:
        found = _read_files(pid, root, missing)
    return Interfaces(pid or 0, time.monotonic(), found, tuple(missing))


def interface_deltas(before: Interfaces, after: Interfaces) -> tuple[InterfaceCounters, ...]:
    """Return counter growth of each interface that both samples have; a counter that fell counts as
    0.
    """
    earlier = {(interface.index, interface.name): interface.counters for interface in before.interfaces}
    deltas = []
    for interface in after.interfaces:
        then, now = earlier.get((interface.index, interface.name)), interface.counters
        if then is None:
            continue
        deltas.append(grown(then, now, *_COUNTERS))
    return tuple(deltas)


def address_of(endpoint: str) -> str:
    """Extract the address of 'address', 'address:port' or '[address]:port'."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.partition(":")[0] if endpoint.count(":") == 1 else endpoint


def parse_net_dev(data: bytes) -> tuple[InterfaceCounters, ...]:
    """Parse /proc/PID/net/dev; unusable lines are left out. Never raises."""
    found = []
    for line in data.split(b"\n"):
        name, colon, rest = line.rpartition(b":")
        words = rest.split()
        if not colon or len(words) < 16:
            continue
        with contextlib.suppress(ValueError):
            received, sent = map(number, words[:4]), map(number, words[8:12])
            found.append(InterfaceCounters(name.strip().decode("utf-8", "replace"), *received, *sent))
    return tuple(found)


def parse_link(payload: memoryview, addresses: dict[int, list[str]]) -> Interface | None:
    """Parse one RTM_NEWLINK message; None if cut short. Never raises.

    `addresses`: by interface index, added to the result; its speed is 0.
    """
    if len(payload) < _IFINFO.size:
        return None
    index = _IFINFO.unpack_from(payload)[3]
    attributes = netlink.parse_attributes(payload, _IFINFO.size)
    name = netlink.text(attributes.get(_IFLA_IFNAME))
    stats = attributes.get(_IFLA_STATS64)
    values = _STATS.unpack_from(stats) if stats is not None and len(stats) >= _STATS.size else (0,) * 8
    rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped = values
    state = netlink.unsigned(attributes.get(_IFLA_OPERSTATE))
    return Interface(
        index=index,
        name=name,
        mtu=netlink.unsigned(attributes.get(_IFLA_MTU)),
        state=_OPERSTATES[state] if state < len(_OPERSTATES) else "unknown",
        speed_hz=0.0,
        addresses=tuple(addresses.get(index, ())),
        counters=InterfaceCounters(
            name, rx_bytes, rx_packets, rx_errors, rx_dropped, tx_bytes, tx_packets, tx_errors, tx_dropped
        ),
    )


def parse_address(payload: memoryview) -> tuple[int, str] | None:
    """Parse (interface index, address) of one RTM_NEWADDR message; None if cut short. Never raises."""
    if len(payload) < _IFADDR.size:
        return None
    index = _IFADDR.unpack_from(payload)[4]
    attributes = netlink.parse_attributes(payload, _IFADDR.size)
    # IFA_LOCAL is the own address; on point-to-point links IFA_ADDRESS is the other end's. IPv6 has only the latter.
    raw = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS))
    if raw is None or len(raw) not in (4, 16):
        return None
    return index, str(ipaddress.ip_address(bytes(raw)))


def _ask_netlink(pid: int | None, root: Path, missing: list[str]) -> tuple[Interface, ...]:
    """Read interfaces and their addresses by netlink, without speeds; notes go to `missing`. Raises OSError."""
    with netlink.open_netlink(netlink.NETLINK_ROUTE, pid, root) as channel:
        links = netlink.dump(channel, RTM_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0, 0))
        if not links.whole:
            missing.append(
                f"interfaces of pid {pid or 'self'}: there are more than are read, so none has its addresses"
            )
        addresses = _addresses(channel, pid, missing) if links.whole else {}
        interfaces = [parse_link(message.payload, addresses) for message in links]
        return tuple(interface for interface in interfaces if interface is not None and interface.name)


def _addresses(channel: socket.socket, pid: int | None, missing: list[str]) -> dict[int, list[str]]:
    """Read the addresses of a namespace by interface index, with a note in `missing` if they are too many.

    Must be the last request: after a truncated answer the kernel gives no other.
    """
    answer = netlink.dump(channel, RTM_GETADDR, _IFADDR.pack(0, 0, 0, 0, 0), _ADDRESSES_MOST_BYTES)
    if not answer.whole:
        missing.append(
            f"addresses of pid {pid or 'self'}: there are more than are read, so some connections lack their interface"
        )
    addresses: dict[int, list[str]] = {}
    for message in answer:
        found = parse_address(message.payload)
        if found is not None:
            addresses.setdefault(found[0], []).append(found[1])
    return addresses


def _with_speeds(
    found: tuple[Interface, ...], pid: int | None, root: Path, missing: list[str]
) -> tuple[Interface, ...]:
    """Return the interfaces with their link speeds, in bytes per second, 0 where the driver gives none.

    Unchanged, with a note in `missing`, where the namespace of `pid` cannot be entered.
    """
    names = [interface.name for interface in found]
    try:
        with ethtool.open_channel(pid, root) as channel:
            speeds = [ethtool.speed_hz(name, channel) for name in names]
    except OSError as error:
        missing.append(f"link speeds of pid {pid or 'self'}: {reason(error)}")
        return found
    return tuple(
        Interface(one.index, one.name, one.mtu, one.state, speed, one.addresses, one.counters)
        for one, speed in zip(found, speeds, strict=True)
    )


def _read_files(pid: int | None, root: Path, missing: list[str]) -> tuple[Interface, ...]:
    """Read interfaces from /proc/PID/net/dev: counters; in the observer's own namespace also speed, state, MTU.

    Empty, with a note in `missing`, where that file cannot be read.
    """
    try:
        counters = parse_net_dev(read_file(proc_path(root, pid or "self", "net/dev")))
    except OSError as error:
        missing.append(f"interfaces of pid {pid or 'self'}: {reason(error)}")
        return ()
    own = pid is None
    interfaces = []
    for counter in counters:
        folder = f"{str(root).rstrip('/')}/sys/class/net/{counter.name}"
        interfaces.append(
            Interface(
                index=_number(f"{folder}/ifindex") if own else 0,
                name=counter.name,
                mtu=_number(f"{folder}/mtu") if own else 0,
                state=_word(f"{folder}/operstate") if own else "unknown",
                speed_hz=max(0, _number(f"{folder}/speed")) * 1e6 / 8 if own else 0.0,
                addresses=(),
                counters=counter,
            )
        )
    return tuple(interfaces)


def _word(path: str) -> str:
    """Read a file of one word; 'unknown' where it cannot be read."""
    try:
        return read_file(path, 64).decode("ascii", "replace").strip()
    except OSError:
        return "unknown"


def _number(path: str) -> int:
    """Read a file of one whole number; 0 where it cannot be read."""
    try:
        return number(read_file(path, 64).strip())
    except (OSError, ValueError):
        return 0
