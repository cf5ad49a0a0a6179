"""Read a network driver's values through the ethtool ioctl: speed, statistics, and the fastest
supported mode.

In: an interface name, and a socket in its network namespace. Out: numbers. linux/ethtool.h.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from rankscope.probes.host.procfs import ROOT
from rankscope.probes.network import netlink

_SIOCETHTOOL, _GSET = 0x8946, 1
_SPEED_UNKNOWN = (0xFFFFFFFF, 0xFFFF)
_GSTRINGS, _GSTATS, _GSSET_INFO, _GLINKSETTINGS = 0x1B, 0x1D, 0x37, 0x4C
_SET_STATISTICS = 1
_NAME_BYTES = 32
MAX_STATISTICS = 16384
_MASKS_AT, _WORDS_AT = 48, 15
# enum ethtool_link_mode_bit_indices: (first bit, last bit, megabits per second). Bits not listed
# are no speeds.
_MODES = (
    (0, 1, 10), (2, 3, 100), (4, 5, 1000), (12, 12, 10000), (15, 15, 2500), (17, 17, 1000), (18, 20, 10000), (21, 22, 20000),
    (23, 26, 40000), (27, 30, 56000), (31, 33, 25000), (34, 35, 50000), (36, 39, 100000), (40, 40, 50000), (41, 41, 1000),
    (42, 46, 10000), (47, 47, 2500), (48, 48, 5000), (52, 56, 50000), (57, 61, 100000), (62, 66, 200000), (67, 67, 100),
    (68, 68, 1000), (69, 73, 400000), (75, 79, 100000), (80, 84, 200000), (85, 89, 400000), (90, 91, 100), (92, 92, 10),
    (93, 98, 800000), (102, 107, 200000), (108, 113, 400000), (114, 119, 800000),
)  # fmt: skip


def statistics(interface: str, wanted: Iterable[str]) -> dict[str, int]:
    """Read the `wanted` statistics of an interface's driver by name, in this thread's network namespace.

    Those it does not have are left out. Raises OSError (no such interface, not supported).
    """
    names = set(wanted)
    with open_channel() as channel:
        info = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SET_STATISTICS, 0))
        _ioctl(channel, interface, info)
        count = min(struct.unpack_from("=I", info, 16)[0], MAX_STATISTICS)
        texts = array.array("B", struct.pack("=III", _GSTRINGS, _SET_STATISTICS, count) + bytes(_NAME_BYTES * count))
        _ioctl(channel, interface, texts)
        values = array.array("B", struct.pack("=II", _GSTATS, count) + bytes(8 * count))
        _ioctl(channel, interface, values)
    return {name: value for name, value in _pairs(texts, values, count) if name in names}


def _pairs(texts: array.array[int], values: array.array[int], count: int) -> Iterator[tuple[str, int]]:
    """Yield (name, value) of each of `count` statistics, from the driver's answers to two requests.

    `texts`: ETHTOOL_GSTRINGS, `values`: ETHTOOL_GSTATS.
    """
    for place, value in enumerate(struct.unpack_from(f"={count}Q", values, 8)):
        text = bytes(texts[12 + place * _NAME_BYTES : 12 + (place + 1) * _NAME_BYTES])
        yield text.partition(b"\0")[0].decode("ascii", "replace"), value


def open_channel(pid: int | None = None, root: Path = ROOT) -> socket.socket:
    """Open a socket for ethtool requests in the network namespace of `pid` (own: None). The caller
    closes it.

    Any socket would do. A netlink one reaches no network, so a confined process may have it. Raises
    OSError.
    """
    return netlink.open_netlink(netlink.NETLINK_ROUTE, pid, root)


def speed_hz(interface: str, channel: socket.socket) -> float:
    """Return the current nominal speed in bytes per second (struct ethtool_cmd); 0.0 where unknown.

    `channel`: a socket in the interface's namespace.
    """
    command = array.array("B", struct.pack("=I40x", _GSET))
    try:
        _ioctl(channel, interface, command)
    except OSError:
        return 0.0
    low, high = struct.unpack_from("=H", command, 12)[0], struct.unpack_from("=H", command, 28)[0]
    mbps = high << 16 | low
    return 0.0 if mbps in _SPEED_UNKNOWN else mbps * 1e6 / 8


def best_speed_hz(interface: str) -> float:
    """Return the speed of an interface's fastest supported mode in bytes per second; 0.0 where unknown.

    On most drivers with the module that is plugged in. Raises OSError.
    """
    with open_channel() as channel:
        ask = array.array("B", struct.pack("=I", _GLINKSETTINGS) + bytes(_MASKS_AT - 4))
        _ioctl(channel, interface, ask)
        # The kernel answers with the number of words that it wants, negated.
        words = -struct.unpack_from("=b", ask, _WORDS_AT)[0]
        if not 0 < words <= 64:
            return 0.0
        request = array.array("B", struct.pack("=I", _GLINKSETTINGS) + bytes(_MASKS_AT - 4 + 12 * words))
        struct.pack_into("=b", request, _WORDS_AT, words)
        _ioctl(channel, interface, request)
    return best_mode_hz(struct.unpack_from(f"={words}I", request, _MASKS_AT))


def best_mode_hz(mask: Iterable[int]) -> float:
    """Return the speed of the fastest link mode in a bit mask, in bytes per second; 0.0 for none.

    `mask`: words of 32 bits, lowest first.
    """
    bits = sum(word << 32 * place for place, word in enumerate(mask))
    speeds = [mbps for first, last, mbps in _MODES if bits >> first & ((1 << (last - first + 1)) - 1)]
    return max(speeds, default=0) * 1e6 / 8


def _ioctl(channel: socket.socket, interface: str, data: array.array[int]) -> None:
    """Send the ethtool request in `data`; the kernel writes its answer there. Raises OSError."""
    fcntl.ioctl(channel, _SIOCETHTOOL, struct.pack("16sP16x", interface.encode()[:15], data.buffer_info()[0]))
