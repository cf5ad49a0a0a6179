"""Read queueing disciplines of a network namespace's interfaces: shapers, configured loss and delay, drops.

In: rtnetlink (RTM_GETQDISC, RTM_GETTCLASS for htb) on a socket opened inside the namespace. Out:
Qdiscs. Formats: include/uapi/linux/pkt_sched.h. Rates are bytes per second on the wire, as tc
counts them.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankscope.probes.base.growth import grown
from rankscope.probes.host.procfs import ROOT, reason
from rankscope.probes.network import netlink

RTM_GETLINK, RTM_GETQDISC, RTM_GETTCLASS = 18, 38, 42
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2 = 1, 2, 7
_STATS_BASIC, _STATS_QUEUE, _STATS_PACKETS64 = 1, 3, 8
_TBF_PARMS, _TBF_RATE64 = 1, 4
_HTB_PARMS, _HTB_CEIL64 = 1, 7
_NETEM_RATE, _NETEM_RATE64, _NETEM_LATENCY64 = 6, 8, 10
_CAKE_BASE_RATE64 = 2
_TCM = struct.Struct("=BBHiIII")
_NETEM = struct.Struct("=IIIIII")
_TC_H_ROOT = 0xFFFFFFFF
# The owner of a network namespace can create any number. A card with 256 queues has one for each;
# classes of a shaper are read all together, up to 16 MB.
_MOST, _MOST_SHAPED = 8192, 64  # queueing disciplines; interfaces with classes
_RATESPEC_RATE_OFFSET = 8
_NETEM_TICK_S = 64e-9  # PSCHED_TICKS2NS shifts by 6


@dataclass(frozen=True, slots=True)
class Qdisc:
    """One queueing discipline. `rate_hz` is its limit in bytes per second, None where it has none
    that can be read.

    `loss` is the share of packets it is configured to drop, `delay_s` its configured delay (netem);
    drops and overlimits are events since it was set up.
    """

    interface: str
    kind: str
    root: bool
    rate_hz: float | None
    loss: float
    delay_s: float
    sent_bytes: int
    sent_packets: int
    drops: int
    overlimits: int
    requeues: int
    backlog_bytes: int
    backlog_packets: int
    handle: int
    parent: int


@dataclass(frozen=True, slots=True)
class Qdiscs:
    """All queueing disciplines in the network namespace of `pid`, at `time_s` (CLOCK_MONOTONIC)."""

    pid: int
    time_s: float
    qdiscs: tuple[Qdisc, ...]
    missing: tuple[str, ...]


def read_qdiscs(pid: int | None = None, root: Path = ROOT) -> Qdiscs:
    """Read the queueing disciplines of the network namespace of a process (own: None). Never
    raises.
    """
    try:
        with netlink.open_netlink(netlink.NETLINK_ROUTE, pid, root) as channel:
            names = {}
            for message in netlink.dump(channel, RTM_GETLINK, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)):
                if len(message.payload) >= 16:
                    index = struct.unpack_from("=i", message.payload, 4)[0]
                    names[index] = netlink.text(netlink.parse_attributes(message.payload, 16).get(3))
            found: list[Qdisc] = []
            missing: list[str] = []
            shaped = _Shaped(channel)
            for message in netlink.dump(channel, RTM_GETQDISC, _TCM.pack(0, 0, 0, 0, 0, 0, 0)):
                qdisc = parse_qdisc(message.payload, names)
                if qdisc is None or qdisc.kind == "noqueue":
                    continue
                if len(found) == _MOST:
                    missing.append(f"queueing disciplines of pid {pid or 'self'}: there are more than {_MOST}")
                    break
                if qdisc.kind == "htb":
                    qdisc = replace(qdisc, rate_hz=shaped.limit(_index(message.payload)))
                found.append(qdisc)
            if shaped.left_out:
                missing.append(
                    f"limits of pid {pid or 'self'}: more than {_MOST_SHAPED} interfaces are shaped by classes"
                )
        return Qdiscs(pid or 0, time.monotonic(), tuple(found), tuple(missing))
    except (OSError, struct.error) as error:
        return Qdiscs(
            pid or 0, time.monotonic(), (), (f"queueing disciplines of pid {pid or 'self'}: {reason(error)}",)
        )


@dataclass(slots=True)
class _Shaped:
    """Rate limits of interfaces with htb, read once per interface: the kernel lists all its classes together."""

    channel: socket.socket
    left_out: bool = False
    _limits: dict[int, float | None] = field(default_factory=dict)

    def limit(self, index: int) -> float | None:
        """Return the rate limit of the interface `index`, in bytes per second; None where unknown. Raises OSError.

        Also None, with `left_out` set, once `_MOST_SHAPED` interfaces were read.
        """
        if index not in self._limits:
            if len(self._limits) == _MOST_SHAPED:
                self.left_out = True
                return None
            classes = netlink.dump(self.channel, RTM_GETTCLASS, _TCM.pack(0, 0, 0, index, 0, 0, 0))
            self._limits[index] = htb_limit([one.payload for one in classes])
        return self._limits[index]


def qdisc_deltas(before: Qdiscs, after: Qdiscs) -> tuple[Qdisc, ...]:
    """Return the later queueing disciplines with the growth of their counters; new ones count from 0.

    Limits and backlog are the later ones.
    """
    earlier = {(one.interface, one.kind, one.handle, one.parent): one for one in before.qdiscs}
    deltas = []
    for now in after.qdiscs:
        then = earlier.get((now.interface, now.kind, now.handle, now.parent))
        if then is None or then.sent_packets > now.sent_packets:
            deltas.append(now)
            continue
        deltas.append(grown(then, now, "sent_bytes", "sent_packets", "drops", "overlimits", "requeues"))
    return tuple(deltas)


def parse_qdisc(payload: memoryview, names: dict[int, str]) -> Qdisc | None:
    """Parse one RTM_NEWQDISC message; None if cut short. Never raises.

    `names`: interface names by index.
    """
    if len(payload) < _TCM.size:
        return None
    _family, _pad1, _pad2, index, handle, parent, _info = _TCM.unpack_from(payload)
    attributes = netlink.parse_attributes(payload, _TCM.size)
    kind = netlink.text(attributes.get(_TCA_KIND))
    options = attributes.get(_TCA_OPTIONS, memoryview(b""))
    rate, loss, delay = _limits(kind, options)
    stats = netlink.parse_attributes(attributes.get(_TCA_STATS2, memoryview(b"")))
    sent_bytes, sent_packets = _unpack("=QI", stats.get(_STATS_BASIC))
    sent_packets = netlink.unsigned(stats.get(_STATS_PACKETS64), sent_packets)
    queued, backlog, drops, requeues, overlimits = _unpack("=IIIII", stats.get(_STATS_QUEUE))
    return Qdisc(
        interface=names.get(index, str(index)),
        kind=kind,
        root=parent == _TC_H_ROOT,
        rate_hz=rate,
        loss=loss,
        delay_s=delay,
        sent_bytes=sent_bytes,
        sent_packets=sent_packets,
        drops=drops,
        overlimits=overlimits,
        requeues=requeues,
        backlog_bytes=backlog,
        backlog_packets=queued,
        handle=handle,
        parent=parent,
    )


def htb_limit(classes: list[memoryview]) -> float | None:
    """Sum the rate ceilings of an htb's top classes, in bytes per second; None without any.

    `classes`: RTM_NEWTCLASS messages of one interface.
    """
    total = 0.0
    for payload in classes:
        if len(payload) < _TCM.size or _TCM.unpack_from(payload)[5] != _TC_H_ROOT:
            continue
        attributes = netlink.parse_attributes(payload, _TCM.size)
        options = netlink.parse_attributes(attributes.get(_TCA_OPTIONS, memoryview(b"")))
        parameters = options.get(_HTB_PARMS)
        ceiling = netlink.unsigned(options.get(_HTB_CEIL64))
        if not ceiling and parameters is not None and len(parameters) >= 24:
            ceiling = struct.unpack_from("=I", parameters, 12 + _RATESPEC_RATE_OFFSET)[0]
        total += ceiling
    return total or None


def _limits(kind: str, options: memoryview) -> tuple[float | None, float, float]:
    """Parse the configured limits of a qdisc: (bytes per second or None, share of loss, delay in seconds).

    `options`: its TCA_OPTIONS. For kinds other than tbf, netem and cake: (None, 0, 0).
    """
    rate, loss, delay = 0, 0.0, 0.0
    if kind == "tbf":
        nested = netlink.parse_attributes(options)
        parameters = nested.get(_TBF_PARMS)
        rate = netlink.unsigned(nested.get(_TBF_RATE64))
        if not rate and parameters is not None and len(parameters) >= 12:
            rate = struct.unpack_from("=I", parameters, _RATESPEC_RATE_OFFSET)[0]
    elif kind == "netem" and len(options) >= _NETEM.size:
        latency, _limit, lost, _gap, _duplicate, _jitter = _NETEM.unpack_from(options)
        nested = netlink.parse_attributes(options, _NETEM.size)
        loss = lost / 0xFFFFFFFF
        delay = netlink.unsigned(nested.get(_NETEM_LATENCY64)) * 1e-9 or latency * _NETEM_TICK_S
        rate = netlink.unsigned(nested.get(_NETEM_RATE64)) or _unpack("=I", nested.get(_NETEM_RATE))[0]
    elif kind == "cake":
        rate = netlink.unsigned(netlink.parse_attributes(options).get(_CAKE_BASE_RATE64))
    return float(rate) if rate else None, loss, delay


def _unpack(layout: str, value: memoryview | None) -> tuple[int, ...]:
    """Unpack the start of a netlink attribute by struct `layout`; zeros where it is missing or short."""
    if value is None or len(value) < struct.calcsize(layout):
        return (0,) * len(layout.lstrip("="))
    return struct.unpack_from(layout, value)


def _index(payload: memoryview) -> int:
    """Return the interface index in an RTM_NEWQDISC message, which must not be cut short."""
    return int(_TCM.unpack_from(payload)[3])
