"""What the kernel says: types, netlink, its log, the records of our own programs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from campaignkit.fuzz.target import Target, chosen_by_first_byte, for_each
from rankscope.diagnose.sweep.readings.kernel_events import events
from rankscope.probes.bpf.btf import Btf, NoBtf
from rankscope.probes.gpu.xid import logged_xids
from rankscope.probes.host.kmsg import parse_record
from rankscope.probes.network import inet_diag, netlink
from rankscope.probes.network.interfaces import parse_address, parse_link
from rankscope.probes.network.qdisc import RTM_GETLINK, RTM_GETQDISC, htb_limit, parse_qdisc
from rankscope.unwinder.walk.stack import decode

_RTM_GETADDR = 22


def _btf(data: bytes) -> None:
    types = Btf(data)
    for path in ("inner", "outer.inner", "list.next"):
        try:
            types.offset("outer", path)
        except NoBtf:
            continue


def _small_btf() -> list[bytes]:
    """struct outer {struct {list *inner;}; struct list {list *next;} list;}."""
    text = b"\0outer\0inner\0list\0next\0int\0"
    name = text.index

    def entry(word: bytes, kind: int, last: int, *members: tuple[int, int, int]) -> bytes:
        head = struct.pack("<III", name(word + b"\0") if word else 0, kind << 24 | len(members), last)
        return head + b"".join(struct.pack("<III", *member) for member in members)

    types = entry(b"outer", 4, 24, (0, 2, 0), (name(b"list\0"), 3, 64)) + entry(b"", 4, 8, (name(b"inner\0"), 4, 0))
    types += entry(b"list", 4, 8, (name(b"next\0"), 4, 0)) + entry(b"", 10, 5) + entry(b"", 2, 3)
    types += entry(b"int", 1, 4) + struct.pack("<I", 32)
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(text))
    return [head + types + text]


def _messages(use: Callable[[memoryview], object]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        for message in netlink.parse_messages(data):
            use(message.payload)

    return run


def _diag(payload: memoryview) -> None:
    info = netlink.find_attribute(payload, inet_diag.INET_DIAG_INFO, inet_diag.MESSAGE_BYTES)
    if info is not None:
        inet_diag.peek(info)
    inet_diag.parse_socket(payload, info)


_NETLINK = (
    _messages(lambda payload: parse_qdisc(payload, {1: "lo"})),
    _messages(lambda payload: htb_limit([payload])),
    _messages(lambda payload: parse_link(payload, {})),
    _messages(parse_address),
    _messages(_diag),
)


def _answers() -> list[bytes]:
    """What this machine's kernel answers; it is asked for nothing but what every user may see."""
    found = []
    questions = (
        (netlink.NETLINK_ROUTE, RTM_GETLINK, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)),
        (netlink.NETLINK_ROUTE, _RTM_GETADDR, struct.pack("=BBBBi", 0, 0, 0, 0, 0)),
        (netlink.NETLINK_ROUTE, RTM_GETQDISC, struct.pack("=BBHiIII", 0, 0, 0, 0, 0, 0, 0)),
        (netlink.NETLINK_SOCK_DIAG, inet_diag.SOCK_DIAG_BY_FAMILY, inet_diag.request(socket.AF_INET)),
    )
    with socket.socket() as listening, socket.socket() as connected:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        connected.connect(listening.getsockname())
        for protocol, kind, payload in questions:
            with netlink.open_netlink(protocol) as channel:
                head = struct.pack("=IHHII", 16 + len(payload), kind, netlink.NLM_F_REQUEST | netlink.NLM_F_DUMP, 1, 0)
                channel.send(head + payload)
                found.append(channel.recv(8192)[:1500])
    return for_each(len(_NETLINK), *found)


def _log(data: bytes) -> None:
    messages = [message for record in data.split(b"\0") if (message := parse_record(record)) is not None]
    events(messages)
    logged_xids(messages)


_LOGGED = (
    b"6,1,2,-;watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:7]", b"3,2,3,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python",
    b"4,3,4,-;EXT4-fs error (device vda1): ext4_find_entry:1455: inode #2", b"3,4,5,-;Out of memory: Killed process 77 (python)",
    b"0,5,6,-;Oops: 0000 [#1] PREEMPT SMP NOPTI", b"3,6,7,-;blk_update_request: I/O error, dev sda, sector 77",
    b"4,7,8,-;nfs: server a not responding, timed out", b"0,8,9,-;mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: b2",
    b"3,9,9,-;INFO: task python:77 blocked for more than 120 seconds.", b"30,10,9,c;user\n SUBSYSTEM=pci",
)  # fmt: skip

TARGETS = (
    Target("btf", "type information of the kernel", _btf, _small_btf),
    Target(
        "netlink",
        "routing and socket answers of netlink",
        chosen_by_first_byte(*_NETLINK),
        _answers,
        raises=(struct.error,),
    ),
    Target(
        "kmsg",
        "the kernel's log: records, events, Xids",
        _log,
        lambda: list(_LOGGED),
        longest_bytes=8192,
        words=(
            b"6,1,2,-;",
            b"[Hardware Error]: ",
            b"mlx5_core 0000:3b:00.0 ",
            b"LustreError: 1-1: ",
            b"XFS (dm-0): ",
            b"Oops: ",
            b"I/O ",
            b": ",
            b"\0",
            b"(",
            b"mce: [Hardware Error]: U",
        ),
    ),
    Target(
        "stacks",
        "stacks that our walk leaves in the kernel",
        decode,
        lambda: [struct.pack("<IIIIQiI", 1, 0, 0, 0, 4096, 3, 7)],
    ),
)
