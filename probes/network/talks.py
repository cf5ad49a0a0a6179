"""Sample the byte counters of connections to certain ports, often enough to tell requests apart.

In: inet_diag of a network namespace, on a thread of its own. Out: for each connection its samples,
one for each change. The kernel adds when it last sent and last received (milliseconds ago), which
places a change more exactly than the samples do.

New connections are found by dumps (flows.py), which walk the kernel's whole table of connections;
known ones are looked up one by one. The pauses between both grow with what they cost, so that each
takes `_SHARE` of one CPU at most.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, reason, socket_inodes
from rankscope.probes.network import inet_diag, netlink
from rankscope.probes.network.flows import connections_of
from rankscope.probes.sampling.thread import Sampler

_EVERY_S, _SEEK_EVERY_S = 0.02, 0.5
_SHARE = 0.02
_SAMPLES_MOST = 50_000  # of all connections
_OWNERS_EVERY_S = 0.5
# struct tcp_info: milliseconds since data was last sent and last received.
_LAST_SENT, _LAST_RECEIVED = struct.Struct("=44xI"), struct.Struct("=52xI")


@dataclass(frozen=True, slots=True)
class TalkSample:
    """Counters of one connection when they changed; times in seconds of CLOCK_MONOTONIC.

    Bytes since it was opened; `sent_at_s`, `received_at_s`: when the last data went and came.
    """

    at_s: float
    sent_bytes: int
    received_bytes: int
    sent_at_s: float
    received_at_s: float

    @property
    def asks(self) -> bool:
        """Whether a request is unanswered: the last data was sent, not received."""
        return self.sent_bytes > 0 and self.sent_at_s > self.received_at_s


@dataclass(frozen=True, slots=True)
class Talk:
    """A connection of a watched process with a port."""

    pid: int
    peer: str
    port: int
    samples: tuple[TalkSample, ...]


class TalkSampler(Sampler):
    """Samples connections of processes in one network namespace to `ports`: `start()`, `stop()`.

    Raises OSError where the namespace cannot be entered.
    """

    def __init__(self, pids: Collection[int], ports: Collection[int], root: Path = ROOT) -> None:
        super().__init__("connections with servers")
        self._pids, self._ports, self._root = tuple(pids), frozenset(ports), root
        self._channel: socket.socket | None = netlink.open_netlink(netlink.NETLINK_SOCK_DIAG, self._pids[0], root)
        self._samples = defaultdict[int, list[TalkSample]](list)
        self._whose: dict[int, tuple[int, str, int]] = {}
        self._strangers: set[int] = set()
        self._owners: dict[int, int] = {}
        self._owners_due_s = self._seek_due_s = 0.0
        self._open: dict[int, bytes] = {}  # requests of connections that are followed
        self._count = 0

    def stop(self, timeout_s: float = 2.0) -> tuple[Talk, ...]:
        """Stop and return what was sampled. Calling it again returns the same."""
        self._finish(timeout_s)
        if self._channel is not None and not self.stuck:
            self._channel.close()
            self._channel = None
        return tuple(Talk(*self._whose[cookie], tuple(found)) for cookie, found in self._samples.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be sampled, and why."""
        return tuple(self._missing)

    def _tick(self, due_ns: int) -> int:
        """Sample the known connections, and now and then look for new ones. Errors become a note.

        Times in ns of CLOCK_MONOTONIC: `due_ns` of this call; returns that of the next.
        """
        began_s = time.thread_time()
        try:
            if due_ns / 1e9 >= self._seek_due_s:
                self._seek()
                self._seek_due_s = due_ns / 1e9 + max(_SEEK_EVERY_S, (time.thread_time() - began_s) / _SHARE)
                began_s = time.thread_time()
            self._look_up()
        except (OSError, struct.error) as error:
            self._missing = [f"requests to servers: {reason(error)}"]
        return due_ns + int(max(_EVERY_S, (time.thread_time() - began_s) / _SHARE) * 1e9)

    def _seek(self) -> None:
        """Dump all connections of the namespace; start to follow new ones of watched processes to the ports.

        Raises OSError; struct.error for an answer that is cut short.
        """
        if self._channel is None:
            return
        at_s = time.monotonic()
        for message in connections_of(self._channel):
            payload = message.payload
            if inet_diag.ports(payload)[1] in self._ports:
                cookie, inode = inet_diag.message_key(payload)
                if cookie not in self._whose and self._adopt(cookie, inode, payload, at_s):
                    self._open[cookie] = inet_diag.request_of_one(payload)

    def _look_up(self) -> None:
        """Sample the byte counters of the connections that `_seek` found; forget those that are gone."""
        for cookie, request in [*self._open.items()]:
            if self._channel is None or self._count >= _SAMPLES_MOST:
                return
            message, at_s = netlink.look_up(self._channel, inet_diag.SOCK_DIAG_BY_FAMILY, request), time.monotonic()
            if message is None:
                del self._open[cookie]
                continue
            info = netlink.find_attribute(message.payload, inet_diag.INET_DIAG_INFO, inet_diag.MESSAGE_BYTES)
            if info is not None:
                self._add(cookie, info, at_s)

    def _adopt(self, cookie: int, inode: int, payload: memoryview, at_s: float) -> bool:
        """Tell whether a new connection belongs to a watched process; if so, record its pid, peer and port.

        `inode`: of its socket, 0 if no process has it open; `payload`: the kernel's answer about it; `at_s`:
        now. False also while the owners must not be read again yet.
        """
        if cookie in self._strangers or not inode:
            return False
        if inode not in self._owners:
            if at_s < self._owners_due_s:
                return False
            self._owners_due_s = at_s + _OWNERS_EVERY_S
            self._owners = dict(self._read_owners())
        pid = self._owners.get(inode)
        if pid is None:
            self._strangers.add(cookie)
            return False
        self._whose[cookie] = pid, inet_diag.peer_of(payload), inet_diag.ports(payload)[1]
        return True

    def _read_owners(self) -> Mapping[int, int]:
        """Read the socket inodes that the watched processes have open: owner's pid by inode. Never raises."""
        found: dict[int, int] = {}
        for pid in self._pids:
            try:
                found.update(dict.fromkeys(socket_inodes(pid, self._root), pid))
            except OSError:
                continue  # it has ended, which others report
        return found

    def _add(self, cookie: int, info: memoryview, at_s: float) -> None:
        """Add a sample of a connection from its struct tcp_info, read at `at_s`; nothing if that is too short.

        The last sample is replaced while nothing changes.
        """
        if len(info) < 136:
            return
        _, _, received, sent = inet_diag.peek(info)
        of_it = self._samples[cookie]
        sent_ago, received_ago = _LAST_SENT.unpack_from(info)[0], _LAST_RECEIVED.unpack_from(info)[0]
        now = TalkSample(at_s, sent, received, at_s - sent_ago / 1e3, at_s - received_ago / 1e3)
        # The last sample is replaced while nothing changes: the one before a change bounds its time.
        if (
            len(of_it) > 1
            and of_it[-2].sent_bytes == of_it[-1].sent_bytes == sent
            and (of_it[-2].received_bytes == of_it[-1].received_bytes == received)
        ):
            of_it[-1] = now
            return
        of_it.append(now)
        self._count += 1
