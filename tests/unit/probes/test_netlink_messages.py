"""Netlink answers are parsed by length: cut, grown or senseless ones yield less, never an error."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.network import flows, inet_diag, interfaces, netlink, qdisc
from rankscope.probes.network.interfaces import (
    Interface,
    InterfaceCounters,
    Interfaces,
    address_of,
    interface_deltas,
    parse_address,
    parse_link,
    parse_net_dev,
    read_interfaces,
)
from rankscope.probes.network.qdisc import htb_limit, parse_qdisc


def attribute(kind: int, data: bytes) -> bytes:
    return (struct.pack("=HH", len(data) + 4, kind) + data).ljust((len(data) + 7) & ~3, b"\0")


def tcp_info(**fields: int) -> bytes:
    """A struct tcp_info of 6.18 (232 bytes); offsets from `offsetof` in C."""
    places = {"unacked": (24, "I"), "lost": (32, "I"), "rtt": (68, "I"), "snd_cwnd": (80, "I"), "total_retrans": (100, "I"),
              "bytes_acked": (120, "Q"), "bytes_received": (128, "Q"), "segs_out": (136, "I"), "notsent_bytes": (144, "I"),
              "min_rtt": (148, "I"), "delivery_rate": (160, "Q"), "busy_time": (168, "Q"), "rwnd_limited": (176, "Q"),
              "sndbuf_limited": (184, "Q"), "bytes_sent": (200, "Q"), "bytes_retrans": (208, "Q"), "flags": (7, "B")}  # fmt: skip
    data = bytearray(232)
    for name, value in fields.items():
        offset, layout = places[name]
        struct.pack_into("=" + layout, data, offset, value)
    return bytes(data)


def test_every_field_of_tcp_info_is_read_from_its_place() -> None:
    info = inet_diag.parse_tcp_info(tcp_info(
        unacked=2, lost=3, rtt=5000, snd_cwnd=7, total_retrans=11, bytes_acked=13, bytes_received=17, segs_out=19, notsent_bytes=23,
        min_rtt=29, delivery_rate=31, busy_time=37_000_000, rwnd_limited=41, sndbuf_limited=43, bytes_sent=47, bytes_retrans=53, flags=1,
    ))  # fmt: skip
    assert (info.unacked_segments, info.lost_segments, info.congestion_window, info.retransmits) == (2, 3, 7, 11)
    assert (info.acked_bytes, info.received_bytes, info.segments_out, info.notsent_bytes) == (13, 17, 19, 23)
    assert (info.rtt_s, info.min_rtt_s, info.busy_s) == pytest.approx((0.005, 29e-6, 37.0))
    assert (info.delivery_rate_hz, info.app_limited) == (31.0, True)
    assert (info.rwnd_limited_s, info.sndbuf_limited_s) == pytest.approx((41e-6, 43e-6))
    assert (info.sent_bytes, info.retransmitted_bytes) == (47, 53)


def test_a_glance_sees_what_the_whole_says() -> None:
    assert inet_diag.peek(memoryview(tcp_info(rtt=5000, delivery_rate=31)))[:2] == (5000, 31)
    assert inet_diag.peek(memoryview(b"x" * 100)) == (0, 0, 0, 0)


def test_a_shorter_tcp_info_of_an_older_kernel_leaves_zeros() -> None:
    info = inet_diag.parse_tcp_info(tcp_info(bytes_acked=13, bytes_retrans=53)[:192])
    assert (info.acked_bytes, info.retransmitted_bytes) == (13, 0)


def test_both_ends_of_a_connection_read_the_same_whatever_the_family() -> None:
    mapped = b"\0" * 10 + b"\xff\xff" + bytes([10, 0, 0, 1])
    assert inet_diag.endpoint(socket.AF_INET6, mapped, 29500) == inet_diag.endpoint(
        socket.AF_INET, bytes([10, 0, 0, 1]) + b"\0" * 12, 29500
    )
    assert inet_diag.endpoint(socket.AF_INET6, b"\xfe\x80" + b"\0" * 13 + b"\1", 7) == "[fe80::1]:7"


def test_a_socket_is_read_from_its_place() -> None:
    payload = struct.pack(
        "=BBBB2s2s16s16sIQIIIII", socket.AF_INET, inet_diag.ESTABLISHED, 0, 0, (29500).to_bytes(2, "big"), (7).to_bytes(2, "big"),
        bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]), 0, 0xABCDEF0123, 0, 101, 103, 0, 4242,
    )  # fmt: skip
    assert len(payload) == inet_diag.MESSAGE_BYTES
    found = inet_diag.parse_socket(memoryview(payload), None)
    assert (found.local, found.peer, found.inode, found.cookie) == ("10.0.0.1:29500", "10.0.0.2:7", 4242, 0xABCDEF0123)
    assert (found.receive_queue_bytes, found.send_queue_bytes) == (101, 103)
    assert inet_diag.message_key(memoryview(payload)) == (0xABCDEF0123, 4242)
    assert len(inet_diag.request(socket.AF_INET)) == 56


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT])
def test_a_kernel_that_answers_for_one_family_at_a_time_is_asked_so(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    asked: list[int] = []

    def dump(channel: object, kind: int, payload: bytes) -> netlink.Answer:
        if kind == inet_diag.TCPDIAG_GETSOCK:
            raise OSError(error, "not known")
        asked.append(payload[0])
        return netlink.Answer([netlink.Message(kind, 1, memoryview(payload))])

    monkeypatch.setattr(netlink, "dump", dump)
    with socket.socket() as channel:
        found = flows.connections_of(channel)
    assert asked == [socket.AF_INET, socket.AF_INET6] == [message.payload[0] for message in found]


class Kernel:
    """A netlink socket that answers each request with so many datagrams of one message, and `kind` at the end."""

    def __init__(self, datagrams: int, payload: bytes, kind: int = netlink.NLMSG_DONE) -> None:
        self.datagrams, self.payload, self.kind = datagrams, payload, kind
        self.sequence = self.sent = 0

    def send(self, data: bytes) -> None:
        self.sequence = struct.unpack_from("=IHHI", data)[3]

    def recv(self, _: int) -> bytes:
        self.sent += 1
        body, kind = (self.payload, 20) if self.sent <= self.datagrams else (b"\0" * 4, self.kind)
        return struct.pack("=IHHII", 16 + len(body), kind, 0, self.sequence, 0) + body


def test_an_answer_says_whether_it_is_whole() -> None:
    whole = netlink.dump(cast(Any, Kernel(10, b"x" * 84)), 20, b"", 1001)
    assert len(whole.messages) == 10 and whole.whole
    refused = netlink.dump(cast(Any, Kernel(10, b"x" * 84, netlink.NLMSG_ERROR)), 20, b"", 1001)
    assert len(refused.messages) == 10 and refused.whole
    cut = netlink.dump(cast(Any, Kernel(11, b"x" * 84)), 20, b"", 1000)
    assert len(cut.messages) == 10 and not cut.whole


@pytest.mark.parametrize(("answers", "said"), [(True, 0), (False, 1)])
def test_of_addresses_without_number_some_are_read_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch, answers: bool, said: int
) -> None:
    asked: list[tuple[int, int]] = []
    address = struct.pack("=BBBBi", socket.AF_INET, 8, 0, 0, 2) + attribute(2, bytes([10, 0, 0, 1]))
    link = struct.pack("=BBHiII", 0, 0, 1, 2, 0, 0) + attribute(3, b"eth0\0")

    def dump(channel: object, kind: int, payload: bytes, most_bytes: int = 0) -> netlink.Answer:
        asked.append((kind, most_bytes))
        is_link = kind == interfaces.RTM_GETLINK
        return netlink.Answer([netlink.Message(16, 1, memoryview(link if is_link else address))], is_link or answers)

    monkeypatch.setattr(netlink, "open_netlink", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(netlink, "dump", dump)
    found = read_interfaces(7, speeds=False)
    assert [(one.name, one.addresses) for one in found.interfaces] == [("eth0", ("10.0.0.1",))]
    assert [note for note in found.missing if note.startswith("addresses of pid 7")] == list(found.missing)
    assert len(found.missing) == said
    # After an answer that is cut the kernel gives no other on this socket: what may be cut is asked for last.
    assert asked == [(interfaces.RTM_GETLINK, 0), (interfaces.RTM_GETADDR, 1 << 20)]


def test_one_question_is_for_connections_of_both_families() -> None:
    assert len(inet_diag.request_of_all()) == 60
    with contextlib.ExitStack() as stack:
        inodes = set()
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                server = stack.enter_context(socket.create_server((address, 0), family=family))
            except OSError:
                continue  # a host without IPv6
            ours = stack.enter_context(socket.create_connection(server.getsockname()[:2]))
            inodes.add(os.fstat(ours.fileno()).st_ino)
        assert inodes <= {one.inode for one in flows.tcp_sockets(os.getpid())}


def _qdisc(kind: str, options: bytes, parent: int = 0xFFFFFFFF, index: int = 2) -> bytes:
    stats = attribute(1, struct.pack("=QI", 1300, 13) + b"\0" * 4) + attribute(
        3, struct.pack("=IIIII", 1, 1500, 17, 0, 23)
    )
    return (
        struct.pack("=BBHiIII", 0, 0, 0, index, 0x10000, parent, 0)
        + attribute(1, kind.encode() + b"\0")
        + attribute(2, options)
        + attribute(7, stats)
    )


def test_a_token_bucket_tells_its_rate() -> None:
    parms = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, 12_500_000) + b"\0" * 24
    found = parse_qdisc(memoryview(_qdisc("tbf", attribute(1, parms))), {2: "eth0"})
    assert found is not None
    assert (found.interface, found.kind, found.root, found.rate_hz) == ("eth0", "tbf", True, 12_500_000.0)
    assert (found.drops, found.overlimits, found.backlog_bytes, found.sent_packets) == (17, 23, 1500, 13)
    wide = parse_qdisc(
        memoryview(_qdisc("tbf", attribute(1, parms) + attribute(4, struct.pack("=Q", 50_000_000_000)))), {}
    )
    assert wide is not None and wide.rate_hz == 50e9


def test_netem_tells_loss_and_delay() -> None:
    options = struct.pack("=IIIIII", 0, 1000, int(0.02 * 2**32), 0, 0, 0) + attribute(10, struct.pack("=q", 5_000_000))
    found = parse_qdisc(memoryview(_qdisc("netem", options)), {2: "eth0"})
    assert found is not None
    assert (found.loss, found.delay_s, found.rate_hz) == (pytest.approx(0.02), pytest.approx(0.005), None)


def test_the_top_classes_of_htb_tell_its_ceiling() -> None:
    spec = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, 1000)
    ceil = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, 2000)
    classes = [
        _qdisc("htb", attribute(1, spec + ceil + b"\0" * 20)),
        _qdisc("htb", attribute(1, spec + ceil + b"\0" * 20), parent=0x10001),
    ]
    assert htb_limit([memoryview(one) for one in classes]) == 2000.0
    assert htb_limit([]) is None


def test_the_classes_of_an_interface_are_asked_for_once_and_of_some_dozens_of_interfaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tens of thousands of htb may be below one another, and on as many interfaces."""
    spec = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, 2000)
    below = _qdisc("htb", attribute(1, spec + spec + b"\0" * 20))
    said = [_qdisc("htb", b"", index=index, parent=parent) for index in range(1, 101) for parent in (0xFFFFFFFF, 7, 8)]
    asked: list[int] = []

    def dump(channel: object, kind: int, payload: bytes) -> list[netlink.Message]:
        if kind == qdisc.RTM_GETTCLASS:
            asked.append(struct.unpack_from("=i", payload, 4)[0])
            return [netlink.Message(40, 1, memoryview(below))]
        return [netlink.Message(36, 1, memoryview(one)) for one in said] if kind == qdisc.RTM_GETQDISC else []

    monkeypatch.setattr(netlink, "open_netlink", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(netlink, "dump", dump)
    found = qdisc.read_qdiscs(7)
    assert asked == list(range(1, 65))
    assert [one.rate_hz for one in found.qdiscs] == [2000.0] * 3 * 64 + [None] * 3 * 36
    assert found.missing == ("limits of pid 7: more than 64 interfaces are shaped by classes",)
    monkeypatch.setattr(qdisc, "_MOST", 30)
    found = qdisc.read_qdiscs(7)
    assert len(found.qdiscs) == 30 and found.missing == ("queueing disciplines of pid 7: there are more than 30",)


@given(st.binary(max_size=600))
def test_no_bytes_make_the_parsers_fail(data: bytes) -> None:
    for message in netlink.parse_messages(data):
        netlink.parse_attributes(message.payload)
    view = memoryview(data)
    assert netlink.find_attribute(view, 2) is None or 2 in netlink.parse_attributes(view)
    inet_diag.peek(view)
    inet_diag.parse_tcp_info(data)
    parse_link(view, {})
    parse_address(view)
    parse_qdisc(view, {})
    htb_limit([view])
    parse_net_dev(data)
    for kind in ("tbf", "netem", "htb", "cake"):
        parse_qdisc(memoryview(_qdisc(kind, data)), {})
    if len(data) >= inet_diag.MESSAGE_BYTES:
        inet_diag.parse_socket(view, view)
    else:
        with pytest.raises(struct.error):
            inet_diag.parse_socket(view, None)


def test_interface_counters_of_proc() -> None:
    data = b"Inter-|   Receive\n face |bytes\n    lo: 7 1 2 3 0 0 0 0 11 4 5 6 0 0 0 0\neth0.5:8 1 2 3 0 0 0 0 13 4 5 6 0 0 0 0\nbad: 1 x\n"
    assert parse_net_dev(data) == (
        InterfaceCounters("lo", 7, 1, 2, 3, 11, 4, 5, 6),
        InterfaceCounters("eth0.5", 8, 1, 2, 3, 13, 4, 5, 6),
    )


def test_an_address_leads_to_its_interface() -> None:
    counters = InterfaceCounters("eth0", *[0] * 8)
    known = Interfaces(0, 0.0, (Interface(2, "eth0", 1500, "up", 0.0, ("10.0.0.1", "fe80::1"), counters),), ())
    assert [known.carriers().carrying(end) for end in ("10.0.0.1:5", "[fe80::1]:5", "10.0.0.1", "127.0.0.9:1", "10.0.0.2:5", "")] == [
        "eth0", "eth0", "eth0", "lo", "", "",
    ]  # fmt: skip
    assert address_of("fe80::1") == "fe80::1"


def test_interfaces_of_a_recorded_tree_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "proc/self/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    for name, text in (("ifindex", "2"), ("mtu", "9000"), ("operstate", "up"), ("speed", "100000")):
        (tmp_path / "sys/class/net/eth0" / name).write_text(text + "\n")
    counters = tmp_path / "proc/self/net/dev"

    counters.write_text("eth0: 100 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0\n")
    before = read_interfaces(root=tmp_path)
    counters.write_text("eth0: 113 1 0 7 0 0 0 0 189 2 0 0 0 0 0 0\n")
    after = read_interfaces(root=tmp_path)

    assert (after.interfaces[0].mtu, after.interfaces[0].state, after.interfaces[0].speed_hz) == (9000, "up", 12.5e9)
    assert interface_deltas(before, after) == (InterfaceCounters("eth0", 13, 0, 0, 7, 0, 0, 0, 0),)
    assert read_interfaces(7, tmp_path).missing


def test_a_kernel_without_the_module_for_connections_is_told_to_load_it() -> None:
    # sock_diag answers ENOENT where nothing handles its family
    assert "modprobe tcp_diag" in flows.why_not_listed(OSError(errno.ENOENT, "ENOENT"))
    assert flows.why_not_listed(OSError(errno.EPERM, os.strerror(errno.EPERM))) == "operation not permitted"
