"""Minimal netlink client: one request, one answer, in the network namespace of any process.

A netlink socket belongs for ever to the namespace of the thread that opened it. So it is opened
inside (see namespaces.py), kept open, and used from anywhere. Only information is requested;
nothing is ever set. Formats: netlink(7), include/uapi/linux/netlink.h. Answers are parsed by
length: newer kernels append fields.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base import rights
from rankscope.probes.host.namespaces import in_namespace, namespace_inode
from rankscope.probes.host.procfs import ROOT

NETLINK_ROUTE = 0
NETLINK_SOCK_DIAG = 4

NLM_F_REQUEST = 0x1
NLM_F_DUMP = 0x300
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLA_TYPE_MASK = 0x3FFF

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE_BYTES = 256 * 1024
_SOCKET_BUFFER_BYTES = 1024 * 1024
# 16 MiB hold 50,000 sockets: more than a training host has, and a limit for a kernel that would
# never stop.
ANSWER_CAP = 16 * 1024 * 1024
_TIMEOUT_S = 2.0
_sequences = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Message:
    """One netlink message without its header."""

    kind: int
    sequence: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one dump request; `whole`: it is complete.

    If not, the kernel has more for this socket and refuses the next request on it (EBUSY).
    """

    messages: Sequence[Message]
    whole: bool = True

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)


def open_netlink(protocol: int, pid: int | None = None, root: Path = ROOT) -> socket.socket:
    """Open a netlink socket in the network namespace of `pid` (own namespace: None). The caller
    closes it.

    Raises OSError.
    """
    if (asked := rights.delegate()) is not None:
        return socket.socket(fileno=asked.ask("socket", pid=pid, protocol=protocol)[1][0])
    if pid is None or _same_namespace(pid, root):
        return _open(protocol)
    return in_namespace(pid, "net", lambda: _open(protocol), root)


def dump(channel: socket.socket, kind: int, payload: bytes, most_bytes: int = 0) -> Answer:
    """Send one dump request and read all of its answer, until it exceeds `most_bytes` (0: `ANSWER_CAP`).

    `kind`: message type; `payload`: fixed header of that type. Raises OSError (the kernel's error, or
    no answer in 2 s).
    """
    sequence = next(_sequences) & 0xFFFFFFFF
    request = _HEADER.pack(_HEADER.size + len(payload), kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, 0) + payload
    channel.send(request)
    messages: list[Message] = []
    size = 0
    while size < (most_bytes or ANSWER_CAP):
        data = channel.recv(_RECEIVE_BYTES)
        size += len(data)
        for message in parse_messages(data):
            if message.sequence != sequence:
                continue  # the rest of an earlier, abandoned answer
            if message.kind == NLMSG_DONE:
                return Answer(messages)
            if message.kind == NLMSG_ERROR:
                number = -struct.unpack_from("=i", message.payload)[0] if len(message.payload) >= 4 else 0
                if number:
                    raise OSError(number, os.strerror(number))
                return Answer(messages)
            messages.append(message)
        if not data:
            break
    return Answer(messages, whole=False)


def look_up(channel: socket.socket, kind: int, payload: bytes) -> Message | None:
    """Send one request for a single object and read its answer; None for any error of the kernel.

    As where there is no such object. Raises OSError where no answer comes in 2 s.
    """
    sequence = next(_sequences) & 0xFFFFFFFF
    channel.send(_HEADER.pack(_HEADER.size + len(payload), kind, NLM_F_REQUEST, sequence, 0) + payload)
    while data := channel.recv(_RECEIVE_BYTES):
        for message in parse_messages(data):
            if message.sequence == sequence:
                return None if message.kind == NLMSG_ERROR else message
    return None


def parse_messages(data: bytes) -> Iterator[Message]:
    """Parse the messages of one datagram; stop at the first that is cut short. Never raises."""
    view = memoryview(data)
    offset, end = 0, len(data)
    while offset + _HEADER.size <= end:
        length, kind, _flags, sequence, _port = _HEADER.unpack_from(view, offset)
        if length < _HEADER.size or offset + length > end:
            return
        yield Message(kind, sequence, view[offset + _HEADER.size : offset + length])
        offset += (length + 3) & ~3


def parse_attributes(payload: memoryview, offset: int = 0) -> dict[int, memoryview]:
    """Parse attributes (type → value) after `offset` bytes of fixed header; stop where cut short.
    Never raises.
    """
    found: dict[int, memoryview] = {}
    end = len(payload)
    while offset + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(payload, offset)
        if length < _ATTRIBUTE.size or offset + length > end:
            break
        found[kind & NLA_TYPE_MASK] = payload[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


def find_attribute(payload: memoryview, wanted: int, offset: int = 0) -> memoryview | None:
    """Return the attribute of type `wanted` after `offset` bytes of fixed header; None where there is none.

    The others are not parsed. Never raises.
    """
    end = len(payload)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(payload, offset)
        if length < 4 or offset + length > end:
            return None
        if kind & NLA_TYPE_MASK == wanted:
            return payload[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return None


def text(value: memoryview | None) -> str:
    """Decode a NUL-terminated string attribute, at most 256 bytes; '' for None."""
    return "" if value is None else bytes(value[:256]).partition(b"\0")[0].decode("utf-8", "replace")


def unsigned(value: memoryview | None, default: int = 0) -> int:
    """Decode a number of 1, 2, 4 or 8 bytes in host order; `default` for None and any other length."""
    if value is None or len(value) not in (1, 2, 4, 8):
        return default
    return int.from_bytes(value, sys.byteorder)


def _same_namespace(pid: int, root: Path) -> bool:
    """Tell whether a process is in the network namespace of the calling thread; False where unknown."""
    # The namespace of the calling thread counts, not that of the process ("self").
    try:
        return namespace_inode(pid, "net", root) == namespace_inode("thread-self", "net")
    except (OSError, ValueError):
        return False


def _open(protocol: int) -> socket.socket:
    """Open a netlink socket in this thread's network namespace; a receive gives up after 2 s. Raises OSError."""
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        channel.bind((0, 0))
        # A kernel that answers does so at once; with SO_RCVTIMEO the socket blocks, without an
        # extra poll per read.
        whole, part = divmod(_TIMEOUT_S, 1)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(whole), int(part * 1e6)))
    except OSError:
        channel.close()
        raise
    return channel
