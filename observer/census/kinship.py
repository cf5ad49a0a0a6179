"""Find processes that are connected with each other by TCP, to separate unnamed ranks from helpers of a rank.

In: the sockets a process holds (/proc/PID/fd) and the connections of its network namespace
(/proc/PID/net/tcp, tcp6). Files, not netlink: recorded trees serve as well, and only doubtful cases
are read. Pure but for two readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.probes.host.common_tables import CommonTables
from rankscope.probes.host.fair import Fair, whose
from rankscope.probes.host.namespaces import namespace_inode
from rankscope.probes.host.procfs import ROOT, open_files, sockets

NET_TCP = ("net/tcp", "net/tcp6")  # below /proc/PID
_ESTABLISHED, _LISTENS = b"01", b"0A"
_NET_TCP_CAP = 64 << 20
# Bytes of connection tables, 150 per connection, 50 MB a second: for all network namespaces, and
# then per user.
_FREELY_BYTES, _EACH_BYTES = 64 << 20, 4 << 20
# Open files that are read, 6 us each: for all processes together, and then per user. A rank has
# some hundreds; the one with torch's store has one for each rank of the job.
_FREELY, _EACH = 200_000, 20_000
_LOOPBACK_V4 = b"0100007F"
_MAPPED = b"0000000000000000FFFF0000"
_LOOPBACK_V6 = b"00000000000000000000000001000000"

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Hub:
    """A process that all others of a group connect to. `whole`: only members of the group are
    connected with it.
    """

    pid: int
    port: bytes
    whole: bool


@dataclass(slots=True)
class Connections:
    """Cached lookups of TCP connections of processes. Unreadable counts as none; see `notes` for what was too much."""

    root: Path = ROOT
    notes: list[str] = field(default_factory=list)
    _inodes: dict[int, frozenset[int]] = field(default_factory=dict)
    _own: dict[tuple[int, int], frozenset[Pair]] = field(default_factory=dict)
    _spaces: dict[int, int] = field(default_factory=dict)
    _fair: Fair = field(default_factory=lambda: Fair(_FREELY, _EACH))
    _tables: CommonTables[int, int, Pair] = field(init=False)
    _listening: CommonTables[int, int, bytes] = field(init=False)

    def __post_init__(self) -> None:
        fair = Fair(_FREELY_BYTES, _EACH_BYTES)
        self._tables = CommonTables(self.root, NET_TCP, parse_net_tcp, _NET_TCP_CAP, fair, self._tell)
        self._listening = CommonTables(self.root, NET_TCP, parse_listening, _NET_TCP_CAP, fair, self._tell)

    def inodes(self, pid: int) -> frozenset[int]:
        """Return the inodes of a process's sockets; of very many open files only those with the
        lowest descriptors.
        """
        if pid not in self._inodes:
            most = min(max(int(self._fair.left(lambda: whose(pid, self.root))), 0), _EACH)
            try:
                files = open_files(pid, self.root, most)
            except OSError:
                files = {}
            self._fair.spend(len(files), lambda: whose(pid, self.root))
            self._inodes[pid] = sockets(files)
        return self._inodes[pid]

    def listens(self, pid: int) -> bool:
        """Tell whether a process has a socket that listens for TCP connections."""
        inodes = self.inodes(pid)
        return bool(inodes) and not inodes.isdisjoint(self._listening.of(pid, *self._seen_by(pid)))

    def ports_reached(self, pid: int) -> frozenset[int]:
        """Return the port numbers of the peers that a process's sockets are connected to."""
        table = self._table(pid)
        return frozenset(int(_port(table[inode][1]), 16) for inode in self.inodes(pid) if inode in table)

    def ports_listening(self, pid: int) -> dict[int, int]:
        """Return the port of each listening socket in a process's network, by inode."""
        table = self._listening.of(pid, *self._seen_by(pid))
        return {inode: int(_port(local), 16) for inode, local in table.items()}

    def own(self, pid: int, parent: int) -> frozenset[Pair]:
        """Return (local, peer) of the connections that a process has but its parent has not: a fork
        inherits them.
        """
        if (pid, parent) not in self._own:
            inodes = self.inodes(pid) - self.inodes(parent)
            table: Mapping[int, Pair] = self._table(pid) if inodes else {}
            self._own[pid, parent] = frozenset(table[inode] for inode in inodes if inode in table)
        return self._own[pid, parent]

    def groups(self, pids: Iterable[int], parents: dict[int, int]) -> list[list[int]]:
        """Group processes that are connected with each other, directly or through others; at least
        two per group.
        """
        ends: dict[tuple[int, Pair], int] = {}
        members = list(pids)
        pairs = {pid: self.own(pid, parents.get(pid, 0)) for pid in members}
        spaces = {pid: self._space(pid) for pid in members}
        for pid in members:
            for pair in pairs[pid]:
                ends[_key(spaces[pid], pair), pair] = pid
        leader = {pid: pid for pid in members}

        def find(pid: int) -> int:
            """Return the process that represents the group of `pid` so far."""
            while leader[pid] != pid:
                leader[pid] = leader[leader[pid]]
                pid = leader[pid]
            return pid

        for pid in members:
            for local, peer in pairs[pid]:
                other = ends.get((_key(spaces[pid], (peer, local)), (peer, local)))
                if other is not None and other != pid:
                    leader[find(other)] = find(pid)
        grouped: dict[int, list[int]] = {}
        for pid in members:
            grouped.setdefault(find(pid), []).append(pid)
        return [group for group in grouped.values() if len(group) > 1]

    def ends(self, pid: int, parent: int) -> list[tuple[tuple[int, Pair], tuple[int, Pair]]]:
        """Return a process's own connections, each as two keys: as seen from here, and as seen from its other end.

        A key is (network namespace for a loopback connection, else 0; the pair).
        """
        space = self._space(pid)
        return [((_key(space, pair), pair), (_key(space, pair[::-1]), pair[::-1])) for pair in self.own(pid, parent)]

    def hub(self, members: Sequence[int], parents: dict[int, int]) -> Hub | None:
        """Find the member that all others and itself are connected to at one port.

        That is the holder of torch's store or JAX's coordinator.
        """
        pairs = {pid: self.own(pid, parents.get(pid, 0)) for pid in members}
        ends = {local for pid in members for local, _ in pairs[pid]}
        ports = {pid: {_port(to) for _, to in pairs[pid]} for pid in members}
        # port -> number of members connected to it
        reached = Counter(port for each in ports.values() for port in each)
        for pid in members:
            for local, peer in sorted(pairs[pid]):
                port = _port(local)
                if (peer, local) in pairs[pid] and reached[port] - (port in ports[pid]) == len(members) - 1:
                    served = [to for at, to in pairs[pid] if _port(at) == port]
                    return Hub(pid, port, all(to in ends for to in served))
        return None

    def linked_otherwise(self, hub: Hub, members: Sequence[int], parents: dict[int, int]) -> bool:
        """Tell whether the hub has connections with members besides those to its port: it works
        with them.
        """
        mine = self.own(hub.pid, parents.get(hub.pid, 0))
        theirs = {pair for pid in members if pid != hub.pid for pair in self.own(pid, parents.get(pid, 0))}
        return any((peer, local) in theirs and hub.port not in (_port(local), _port(peer)) for local, peer in mine)

    def reaches_out(self, pid: int, parent: int) -> bool:
        """Tell whether a process has a connection of its own to another host."""
        return any(
            not _is_loopback(peer) and _address(local) != _address(peer) for local, peer in self.own(pid, parent)
        )

    def _space(self, pid: int) -> int:
        """Return the inode of a process's network namespace, cached; 0 where unreadable."""
        if pid not in self._spaces:
            try:
                self._spaces[pid] = namespace_inode(pid, "net", self.root)
            except (OSError, ValueError):
                self._spaces[pid] = 0
        return self._spaces[pid]

    def _table(self, pid: int) -> Mapping[int, Pair]:
        """Return the established connections in a process's network namespace, by socket inode."""
        return self._tables.of(pid, *self._seen_by(pid))

    def _seen_by(self, pid: int) -> tuple[int, Callable[[], str]]:
        """Return the network namespace of a process (-pid if unknown), and a function that names its user.

        The user's budget pays for reading the tables of that namespace.
        """
        return self._space(pid) or -pid, partial(whose, pid, self.root)

    def _tell(self, user: str, pid: int) -> None:
        """Note that a connection table was not read completely, as this user's budget is used up."""
        self.notes.append(more_connections(user, pid))


def more_connections(user: str, pid: int) -> str:
    """Write the note that a connection table was not read completely."""
    return f"{user}: in the network of pid {pid} are more connections than were examined"


def parse_net_tcp(data: bytes) -> dict[int, Pair]:
    """Parse /proc/net/tcp or tcp6: inode → (local, peer) of established connections, in
    hexadecimal. Never raises.
    """
    return {inode: (_plain(words[1]), _plain(words[2])) for inode, words in _in_state(data, _ESTABLISHED)}


def parse_listening(data: bytes) -> dict[int, bytes]:
    """Parse /proc/net/tcp or tcp6: inode → local end of sockets that listen. Never raises."""
    return {inode: _plain(words[1]) for inode, words in _in_state(data, _LISTENS)}


def _in_state(data: bytes, state: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (inode, words of the line) of the sockets in this state that some process holds."""
    for line in data.split(b"\n"):
        words = line.split()
        if len(words) >= 10 and words[3] == state and words[9].isdigit() and words[9] != b"0":
            yield int(words[9]), words


def _plain(endpoint: bytes) -> bytes:
    """Convert IPv4 inside IPv6 to IPv4: the two ends of one connection may differ in that."""
    return endpoint[len(_MAPPED) :] if endpoint.startswith(_MAPPED) else endpoint


def _address(endpoint: bytes) -> bytes:
    """Return the address of an endpoint 'ADDRESS:PORT' (hexadecimal, as in /proc/net/tcp)."""
    return endpoint.partition(b":")[0]


def _port(endpoint: bytes) -> bytes:
    """Return the port of an endpoint 'ADDRESS:PORT' (hexadecimal, as in /proc/net/tcp)."""
    return endpoint.rpartition(b":")[2]


def _is_loopback(endpoint: bytes) -> bool:
    """Tell whether an endpoint's address (hexadecimal, as in /proc/net/tcp) is 127.x.x.x or ::1."""
    address = _address(endpoint)
    return address in (_LOOPBACK_V4, _LOOPBACK_V6) or (len(address) == 8 and address.endswith(b"7F"))


def _key(space: int, pair: Pair) -> int:
    """Return the namespace for loopback connections, 0 for others.

    Loopback addresses differ between namespaces; other addresses mean the same everywhere.
    """
    return space if _is_loopback(pair[0]) or _is_loopback(pair[1]) else 0
