"""Parse inet_diag answers, one TcpSocket each. Pure; formats from
include/uapi/linux/{inet_diag,tcp}.h.

struct tcp_info only ever grew at its end (5.8 has all fields below), so it is read by length; what
is missing is 0.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass
from functools import lru_cache

SOCK_DIAG_BY_FAMILY = 20
TCPDIAG_GETSOCK = 18  # requests all families at once: one walk of the kernel's table
INET_DIAG_INFO = 2

# include/net/tcp_states.h. TIME_WAIT has no counters, LISTEN and CLOSE carry no data.
ESTABLISHED, SYN_SENT, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING = 1, 2, 4, 5, 8, 9, 11
CONNECTED_STATES = sum(1 << s for s in (ESTABLISHED, SYN_SENT, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING))

# struct inet_diag_msg: family, state, timer, retrans | sport, dport (big endian) | src, dst | if | cookie | expires,
# rqueue, wqueue, uid, inode.
_ADDRESSES = struct.Struct("=16s16s")
_KEY = struct.Struct("=Q")
_INODE = struct.Struct("=I")
_QUEUES = struct.Struct("=II")
MESSAGE_BYTES = 72
_COOKIE_OFFSET, _QUEUES_OFFSET, _INODE_OFFSET = 44, 56, 68

_INFO = struct.Struct(
    "=8B"  # 0 state … 7 (bit 0: delivery_rate_app_limited)
    "16x I I I 32x"  # 24 unacked, 28 sacked, 32 lost, 36 retrans … 64
    "I I I I"  # 68 rtt, 72 rttvar, 76 snd_ssthresh, 80 snd_cwnd
    "16x I"  # 100 total_retrans
    "16x Q Q"  # 120 bytes_acked, 128 bytes_received
    "I I I I 8x"  # 136 segs_out, 140 segs_in, 144 notsent_bytes, 148 min_rtt
    "Q Q Q Q"  # 160 delivery_rate, 168 busy_time, 176 rwnd_limited, 184 sndbuf_limited
    "8x Q Q"  # 200 bytes_sent, 208 bytes_retrans
)
_PEEK = struct.Struct("=68x I 48x Q Q 24x Q")


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Counters of one connection since it was opened (`*_bytes`, `*_s`, segments) and its current
    state (the rest).
    """

    acked_bytes: int
    received_bytes: int
    sent_bytes: int
    retransmitted_bytes: int
    retransmits: int
    segments_out: int
    segments_in: int
    rtt_s: float
    rtt_variation_s: float
    min_rtt_s: float
    delivery_rate_hz: float
    app_limited: bool
    busy_s: float
    rwnd_limited_s: float
    sndbuf_limited_s: float
    unacked_segments: int
    lost_segments: int
    notsent_bytes: int
    congestion_window: int


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One connection. `cookie` identifies it while the kernel runs; `inode` is 0 once no process
    has it open.
    """

    cookie: int
    inode: int
    state: int
    local: str
    peer: str
    receive_queue_bytes: int
    send_queue_bytes: int
    info: TcpInfo


def request(family: int, states: int = CONNECTED_STATES) -> bytes:
    """Build a request (struct inet_diag_req_v2) for all TCP sockets of an address family in one of `states`.

    With tcp_info. `states`: bit mask, 1 << state.
    """
    return struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, states)


def request_of_all(states: int = CONNECTED_STATES) -> bytes:
    """Build a request for the TCP sockets of all address families in one of `states`, with tcp_info.

    struct inet_diag_req for TCPDIAG_GETSOCK. `states`: bit mask, 1 << state.
    """
    return struct.pack("=BBBB48xII", socket.AF_INET, 0, 0, 1 << (INET_DIAG_INFO - 1), states, 0)


def request_of_one(payload: memoryview) -> bytes:
    """Build a request for one socket, given an answer about it: the kernel finds it by its hash.

    struct inet_diag_req_v2, with tcp_info.
    """
    head = struct.pack("=BBBBI", payload[0], socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, CONNECTED_STATES)
    return head + bytes(payload[4:52])


def message_key(payload: memoryview) -> tuple[int, int]:
    """Parse only (cookie, inode) of an answer. Raises struct.error if cut short."""
    return _KEY.unpack_from(payload, _COOKIE_OFFSET)[0], _INODE.unpack_from(payload, _INODE_OFFSET)[0]


def ports(payload: memoryview) -> tuple[int, int]:
    """Parse only (local port, peer's port) of an answer. Raises struct.error if cut short."""
    source, peer = struct.unpack_from("!HH", payload, 4)
    return source, peer


def peer_of(payload: memoryview) -> str:
    """Parse only the peer's endpoint of an answer. Raises struct.error if cut short."""
    return endpoint(payload[0], _ADDRESSES.unpack_from(payload, 8)[1], ports(payload)[1])


def parse_socket(payload: memoryview, info: memoryview | None) -> TcpSocket:
    """Parse an answer and its INET_DIAG_INFO attribute. Raises struct.error if the fixed part is
    cut short.
    """
    if len(payload) < MESSAGE_BYTES:
        raise struct.error("inet_diag_msg is cut short")
    family, state = payload[0], payload[1]
    source_port, peer_port = struct.unpack_from("!HH", payload, 4)
    source, peer = _ADDRESSES.unpack_from(payload, 8)
    receive_queue, send_queue = _QUEUES.unpack_from(payload, _QUEUES_OFFSET)
    cookie, inode = message_key(payload)
    return TcpSocket(
        cookie=cookie,
        inode=inode,
        state=state,
        local=endpoint(family, source, source_port),
        peer=endpoint(family, peer, peer_port),
        receive_queue_bytes=receive_queue,
        send_queue_bytes=send_queue,
        info=parse_tcp_info(b"" if info is None else info),
    )


def parse_tcp_info(data: bytes | memoryview) -> TcpInfo:
    """Parse struct tcp_info of any length; fields beyond its end are 0. Never raises."""
    if len(data) < _INFO.size:
        data = bytes(data).ljust(_INFO.size, b"\0")
    # fmt: off
    (_s, _ca, _r, _p, _b, _o, _w, flags, unacked, _sacked, lost, rtt, rtt_variation, _ssthresh, window, retransmits,
     acked, received, segments_out, segments_in, notsent, min_rtt, rate, busy, rwnd, sndbuf, sent, resent) = (
        _INFO.unpack_from(data)
    )
    # fmt: on
    return TcpInfo(
        acked,
        received,
        sent,
        resent,
        retransmits,
        segments_out,
        segments_in,
        rtt / 1e6,
        rtt_variation / 1e6,
        # ~0 until the first round trip was measured
        0.0 if min_rtt == 0xFFFFFFFF else min_rtt / 1e6,
        float(rate),
        bool(flags & 1),
        busy / 1e6,
        rwnd / 1e6,
        sndbuf / 1e6,
        unacked,
        lost,
        notsent,
        window,
    )


def peek(data: memoryview) -> tuple[int, int, int, int]:
    """Parse only four values of a struct tcp_info. Never raises.

    Returns smoothed round trip in µs, delivery rate in bytes/s, bytes received, bytes sent and
    acknowledged.
    """
    if len(data) < _PEEK.size:
        return 0, 0, 0, 0
    rtt_us, acked, received, rate_hz = _PEEK.unpack_from(data)
    return rtt_us, rate_hz, received, acked


@lru_cache(maxsize=4096)
def endpoint(family: int, address: bytes, port: int) -> str:
    """Format '10.0.0.1:29500' or '[fe80::1]:29500'; IPv4 inside IPv6 as IPv4, so that both ends
    agree.
    """
    if family == socket.AF_INET6:
        wide = ipaddress.IPv6Address(address)
        return f"{wide.ipv4_mapped}:{port}" if wide.ipv4_mapped else f"[{wide}]:{port}"
    return f"{ipaddress.IPv4Address(address[:4])}:{port}"
