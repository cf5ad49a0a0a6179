"""Follow the TCP connections of chosen processes: bytes, round trips, what limited the sender.

In: inet_diag dumps (NETLINK_SOCK_DIAG), one socket per network namespace, open between samples.
Out: one FlowSummary per connection and window. The owner of a connection is found through the links
in /proc/PID/fd (read again when new sockets appear, at most twice a second); afterwards the
socket's cookie identifies it.

Cost, measured with Python 3.11 in a virtual machine: 0.5 ms of CPU per sample for 64 sockets, 0.95
ms for 226; sockets of others in the same namespace cost about 2 µs each. To these comes the
kernel's walk over its table of connections, which all namespaces share and which is walked for
each: its size follows the memory of the host (262,144 slots with 24 GB). Bytes moved between the
last sample and the closing of a connection are not seen.
"""

from __future__ import annotations

import errno
import socket
import statistics
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rankscope.probes.host.fair import Fair, whose
from rankscope.probes.host.namespaces import namespace_inode
from rankscope.probes.host.procfs import ROOT, open_files, reason, socket_inodes, sockets
from rankscope.probes.network import inet_diag, netlink
from rankscope.probes.network.inet_diag import TcpSocket
from rankscope.probes.network.interfaces import Carriers, Interfaces, read_interfaces

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
# error numbers of a kernel that no longer knows the request
_OLD_QUESTION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT)
_OWNERS_EVERY_S, _OWNERS_SHARE = 0.5, 0.1  # interval, and share of the time where reading takes longer
# Open files that are read each time, 6 us each, during which the kernel's ring is not drained: for
# all processes together, and then per user.
OWNERS_FREELY, OWNERS_EACH = 30_000, 5_000
# More would mean that the processes serve the world rather than train. For all together, as each
# takes 2 KB; then per user.
MAX_CONNECTIONS, CONNECTIONS_EACH = 16384, 512
SEEN_MOST = 64  # samples stored per connection: two minutes of them
_NONE_KNOWN: Mapping[int, Interfaces] = {}


def why_not_listed(error: BaseException) -> str:
    """Describe in a few words why the kernel does not list connections; ENOENT: module tcp_diag is missing."""
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return "this kernel has not loaded its module tcp_diag (modprobe tcp_diag)"
    return reason(error)


class Seen(NamedTuple):
    """Byte counters of one connection at one time (CLOCK_MONOTONIC)."""

    ns: int
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """One connection over a window: the columns of observer/window/schema.py FLOWS, with pid in
    place of rank.

    `carried_bytes`: both ways, since it was opened; `seen`: its last samples, oldest first.
    """

    pid: int
    local: str
    peer: str
    interface: str
    sent_bytes: int
    received_bytes: int
    retransmitted_bytes: int
    busy_s: float
    rwnd_limited_s: float
    sndbuf_limited_s: float
    rtt_s: float
    min_rtt_s: float
    delivery_rate_hz: float
    carried_bytes: int = 0
    seen: tuple[Seen, ...] = ()

    def since(self, since_ns: int) -> tuple[int, int]:
        """Return bytes received and sent from the first sample at or after `since_ns`
        (CLOCK_MONOTONIC) to the last.
        """
        late = [one for one in self.seen if one.ns >= since_ns]
        if not late:
            return 0, 0
        return late[-1].received_bytes - late[0].received_bytes, late[-1].sent_bytes - late[0].sent_bytes


@dataclass(slots=True)
class _Flow:
    """A connection that is followed; `first`: its counters when the window began."""

    pid: int
    first: TcpSocket
    answer: netlink.Message  # the latest; parsed only when the window ends
    rtts_us: list[int] = field(default_factory=list)
    rate_hz: int = 0
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=SEEN_MOST))

    def add(self, answer: netlink.Message) -> None:
        """Record a new answer of the kernel: byte counters, round trip, and the highest delivery rate."""
        self.answer = answer
        info = netlink.find_attribute(answer.payload, inet_diag.INET_DIAG_INFO, inet_diag.MESSAGE_BYTES)
        if info is not None:
            rtt_us, rate_hz, received, sent = inet_diag.peek(info)
            self.seen.append(Seen(time.monotonic_ns(), received, sent))
            if rtt_us:
                self.rtts_us.append(rtt_us)
            self.rate_hz = max(self.rate_hz, rate_hz)


@dataclass(slots=True)
class _Namespace:
    """One network namespace with its watched processes and connections."""

    inode: int
    pids: list[int]
    channel: socket.socket
    interfaces: Interfaces
    flows: dict[int, _Flow] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    owners: dict[int, int] = field(default_factory=dict)
    owners_due_s: float = float("-inf")
    begun: bool = False
    whole: bool = True  # every sample since `begin` included all connections


class FlowTracker:
    """Follows the TCP connections of processes: `begin()`, `sample()` now and then, `summaries()`.

    `begin()` starts a window (and may be called again for the next one). A connection opened within
    the window counts from zero, if every sample since included all connections; one that closes
    keeps its last values. `notes` says what could not be seen. Use as a context manager, or call
    `close()`: open sockets keep namespaces alive.
    """

    def __init__(self, pids: Iterable[int], root: Path = ROOT) -> None:
        self._root = root
        self._notes: dict[str, None] = {}
        self._namespaces: list[_Namespace] = []
        self._room = Fair(MAX_CONNECTIONS, CONNECTIONS_EACH)
        self._users: dict[int, str] = {}
        by_inode: dict[int, list[int]] = {}
        for pid in pids:
            try:
                by_inode.setdefault(namespace_inode(pid, "net", root), []).append(pid)
            except (OSError, ValueError) as error:
                self._note(f"connections of pid {pid}: {reason(error)}")
        for inode, members in by_inode.items():
            self._open(inode, members)

    def __enter__(self) -> FlowTracker:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what could not be seen, and why."""
        return tuple(self._notes)

    def close(self) -> None:
        """Close the sockets. Calling it twice does no harm."""
        for namespace in self._namespaces:
            namespace.channel.close()
        self._namespaces = []

    def begin(self, known: Mapping[int, Interfaces] = _NONE_KNOWN) -> None:
        """Start a window: counters start here.

        `known`: interfaces that were just read, by the inode of their network namespace.
        """
        self._room = Fair(MAX_CONNECTIONS, CONNECTIONS_EACH)
        for namespace in self._namespaces:
            namespace.interfaces = known.get(namespace.inode) or read_interfaces(
                namespace.pids[0], self._root, speeds=False
            )
            for note in namespace.interfaces.missing:
                self._note(note)
            namespace.flows = {}
            namespace.foreign = set()
            namespace.begun, namespace.whole = False, True
        self.sample()
        for namespace in self._namespaces:
            namespace.begun = True

    def sample(self) -> None:
        """List the connections of every namespace once and update the watched ones. Never raises."""
        for namespace in self._namespaces:
            try:
                self._sample(namespace)
            except (OSError, struct.error) as error:
                # connections missed by the first sample are not new in the next one
                namespace.whole &= namespace.begun
                self._note(f"connections of pid {namespace.pids[0]}: {why_not_listed(error)}")
                if isinstance(error, OSError) and error.errno == errno.EBUSY:
                    self._renew(namespace)

    def summaries(self) -> tuple[FlowSummary, ...]:
        """Summarise each watched connection since `begin()`."""
        of_each = [(namespace.interfaces.carriers(), namespace.flows.values()) for namespace in self._namespaces]
        return tuple(_summary(flow, carriers) for carriers, flows in of_each for flow in flows)

    def _open(self, inode: int, members: list[int]) -> None:
        """Add the network namespace `inode` of the processes `members`; only a note where it cannot be entered."""
        channel = self._channel(members)
        if channel is not None:
            self._namespaces.append(_Namespace(inode, members, channel, Interfaces(members[0], 0.0, (), ())))

    def _channel(self, members: list[int]) -> socket.socket | None:
        """Open a socket in the network namespace of these processes; None, with a note, where that
        fails.
        """
        error: OSError | None = None
        for pid in members:  # the first may have ended meanwhile
            try:
                return netlink.open_netlink(netlink.NETLINK_SOCK_DIAG, pid, self._root)
            except OSError as caught:
                error = caught
        if error is not None:
            self._note(f"connections of pid {members[0]}: {reason(error)}")
        return None

    def _sample(self, namespace: _Namespace) -> None:
        """List the connections of a namespace once: update the watched ones, look for owners of new ones.

        Raises OSError; struct.error for an answer that is cut short.
        """
        unknown: dict[int, netlink.Message] = {}
        seen = set()
        answer = connections_of(namespace.channel)
        if not answer.whole:
            self._cut(namespace)
        for message in answer:
            cookie, inode = inet_diag.message_key(message.payload)
            seen.add(cookie)
            flow = namespace.flows.get(cookie)
            if flow is not None:
                flow.add(message)
            elif cookie not in namespace.foreign and inode:
                unknown[cookie] = message
        namespace.foreign &= seen  # others open and close connections throughout the window
        if unknown:
            self._adopt(namespace, unknown)

    def _cut(self, namespace: _Namespace) -> None:
        """Handle an incomplete sample: note it, count later connections from now, renew the channel.

        A connection seen later may have existed all the time.
        """
        namespace.whole = False
        self._note(
            f"pid {namespace.pids[0]} is in a network with more connections than are read: some of its own are missing"
        )
        self._renew(namespace)

    def _renew(self, namespace: _Namespace) -> None:
        """Replace the channel: after an answer that was not read to its end the kernel gives no
        other on it.
        """
        channel = self._channel(namespace.pids)
        if channel is not None:
            namespace.channel.close()
            namespace.channel = channel

    def _adopt(self, namespace: _Namespace, unknown: dict[int, netlink.Message]) -> None:
        """Find the owners of new connections, by cookie, and follow those of watched processes.

        Reading owners too often is avoided: connections then remain unknown until a later sample.
        """
        now_s = time.monotonic()
        if namespace.begun and now_s < namespace.owners_due_s:
            return  # they remain unknown until next time
        namespace.owners = self._read_owners(namespace.pids)
        took_s = time.monotonic() - now_s
        namespace.owners_due_s = now_s + max(_OWNERS_EVERY_S, took_s / _OWNERS_SHARE)
        for cookie, message in unknown.items():
            now = _parse(message)
            pid = namespace.owners.get(now.inode)
            if pid is None:
                namespace.foreign.add(cookie)
                continue
            user = partial(self._user, pid)
            if self._room.left(user) < 1:
                self._note(f"pid {pid} has more connections than can be followed: {MAX_CONNECTIONS} of a host")
                namespace.foreign.add(cookie)
                continue
            self._room.spend(1, user)
            flow = _Flow(pid, _opened(now) if namespace.begun and namespace.whole else now, message)
            flow.add(message)
            namespace.flows[cookie] = flow

    def _read_owners(self, pids: list[int]) -> dict[int, int]:
        """Read the socket inodes that the processes have open: owner's pid by inode. Never raises.

        Within a budget of open files; notes say where that or an error leaves some out.
        """
        owners: dict[int, int] = {}
        fair = Fair(OWNERS_FREELY, OWNERS_EACH)
        for pid in pids:
            user = partial(whose, pid, self._root)
            most = max(int(fair.left(user)), 0)
            try:
                files = open_files(pid, self._root, most)
                fair.spend(len(files), user)
                if len(files) == most:
                    self._note(f"pid {pid} has very many open files: some of its connections are missing")
                for inode in sockets(files):
                    owners.setdefault(inode, pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended, which others report
            except OSError as error:
                self._note(f"open files of pid {pid}: {reason(error)}")
        return owners

    def _user(self, pid: int) -> str:
        """Return the text that identifies the user of a process (`whose`), cached by pid."""
        if pid not in self._users:
            self._users[pid] = whose(pid, self._root)
        return self._users[pid]

    def _note(self, note: str) -> None:
        """Add a note unless it is there already, or there are 64."""
        if len(self._notes) < 64:
            self._notes[note] = None


def tcp_sockets(pid: int, root: Path = ROOT) -> tuple[TcpSocket, ...]:
    """List the current TCP connections of one process, with their counters. Raises OSError."""
    inodes = socket_inodes(pid, root)
    with netlink.open_netlink(netlink.NETLINK_SOCK_DIAG, pid, root) as channel:
        return tuple(
            _parse(message)
            for message in connections_of(channel)
            if inet_diag.message_key(message.payload)[1] in inodes
        )


def connections_of(channel: socket.socket) -> netlink.Answer:
    """List the TCP connections in the network namespace of a netlink socket, unparsed. Raises OSError.

    One request for all families; on a kernel that refuses it, one for each.
    """
    try:
        return netlink.dump(channel, inet_diag.TCPDIAG_GETSOCK, inet_diag.request_of_all())
    except OSError as error:
        if error.errno not in _OLD_QUESTION:
            raise
    found: list[netlink.Message] = []
    for family in _FAMILIES:
        answer = netlink.dump(channel, inet_diag.SOCK_DIAG_BY_FAMILY, inet_diag.request(family))
        found += answer
        if not answer.whole:
            return netlink.Answer(found, whole=False)
    return netlink.Answer(found)


def _parse(message: netlink.Message) -> TcpSocket:
    """Parse one connection of a kernel's answer. Raises struct.error if it is cut short."""
    info = netlink.find_attribute(message.payload, inet_diag.INET_DIAG_INFO, inet_diag.MESSAGE_BYTES)
    return inet_diag.parse_socket(message.payload, info)


def _opened(now: TcpSocket) -> TcpSocket:
    """Return the connection as it was when it was opened: all counters zero."""
    return TcpSocket(now.cookie, now.inode, now.state, now.local, now.peer, 0, 0, inet_diag.parse_tcp_info(b""))


def _summary(flow: _Flow, carriers: Carriers) -> FlowSummary:
    """Summarise a connection from `flow.first` to its latest answer; a counter that fell counts as 0.

    `carriers`: names the interface by the local address.
    """
    now = _parse(flow.answer)
    first, last = flow.first.info, now.info
    return FlowSummary(
        pid=flow.pid,
        local=now.local,
        peer=now.peer,
        interface=carriers.carrying(now.local),
        sent_bytes=max(0, last.acked_bytes - first.acked_bytes),
        received_bytes=max(0, last.received_bytes - first.received_bytes),
        retransmitted_bytes=max(0, last.retransmitted_bytes - first.retransmitted_bytes),
        busy_s=max(0.0, last.busy_s - first.busy_s),
        rwnd_limited_s=max(0.0, last.rwnd_limited_s - first.rwnd_limited_s),
        sndbuf_limited_s=max(0.0, last.sndbuf_limited_s - first.sndbuf_limited_s),
        rtt_s=statistics.median(flow.rtts_us) / 1e6 if flow.rtts_us else 0.0,
        min_rtt_s=last.min_rtt_s,
        delivery_rate_hz=float(flow.rate_hz),
        carried_bytes=last.acked_bytes + last.received_bytes,
        seen=tuple(flow.seen),
    )
