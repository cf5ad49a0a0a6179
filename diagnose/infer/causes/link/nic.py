"""NIC ports that prolong collectives between hosts: down, at a lower speed, with errors, or slow.

Evidence for: speed (or width) below its capability and below the peers'; symbol or CRC errors at
1/s and ten times the peers'; pause frames likewise (nic/slow: the port cannot take what arrives).
All of these only where the rate while moving is below the peers' and the loss matters; an
unmeasured rate is taken from the speed. Retransmissions and gaps in sequence without errors of the
port itself are loss in the network (network/loss).

Down: the port was not active, or lost its link more often than its peers. lost = the time it was
down, or the excess of steps with a flap over the quickest quarter, whichever is more; at most the
mean transfer. A port that was never active costs what another port carries more than the median
one.

Evidence against: the same on most peers; a rate like theirs. A slow port without a counter is
network/slow-link.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, REPORTED, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.link.compared_ports import Found
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.ports import grown, peers_of
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after, rate
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats

PREFIX = "nic."
ERRORS = ("nic.symbol_errors", "nic.crc_errors")
LOSSES = ("nic.retransmits", "nic.out_of_sequence")
PAUSES = ("nic.pause",)
CONGESTED = ("nic.cnp",)


def moved(found: Found) -> Bools:
    """Mask of ports on which a counter moved that did not move on their peers."""
    return np.asarray(
        _down(found) | (_speed(found) < 1) | found.moved((*ERRORS, *LOSSES, *PAUSES)), dtype=np.bool_
    )  # fmt: skip


@cause("nic", "down", scope="link", witness="port down, for a while or always", rests_on=[Source.PORTS],
       says="the network port {instance|} is down")  # fmt: skip
@cause("nic", "speed-degraded", scope="link", witness="speed or width below the peers'", rests_on=[Source.PORTS],
       says="the network port {instance|} runs below its speed")  # fmt: skip
@cause("nic", "errors", scope="link", witness="symbol or CRC errors", rests_on=[Source.PORTS],
       says="the network port {instance|} has errors")  # fmt: skip
@cause("nic", "slow", scope="link", witness="pause frames", rests_on=[Source.PORTS],
       says="the network port {instance|} is slower than the others")  # fmt: skip
def charge(fleet: Fleet, found: Found, index: int) -> Hypothesis | None:
    """Return the hypothesis on one port whose counters moved; None if its cost is unknown or too small."""
    return _down_charge(fleet, found, index) or _speed_charge(fleet, found, index) or _error_charge(fleet, found, index)


def slow_action(host: str, instance: str) -> str:
    """Return the advice for a port that is slow without a known reason."""
    return (
        f"{instance}{after('of', host)} is slow and reports nothing: check the path behind it (cable, switch port, its counters and "
        f"congestion control), `ib_write_bw -d {instance.partition('/')[0]}` to another host."
    )


def gone(found: Found) -> Bools:
    """Mask of ports that were down, all the time or for a while."""
    return _down(found)


# ---- down --------------------------------------------------------------------------------------------------------------


def _down(found: Found) -> Bools:
    """Mask the ports that were active for less of the window, or lost their link more often, than their peers."""
    state, fell = found.ports.value("nic.state"), found.ports.value("nic.link_downed")
    middle = np.nan_to_num(peers_of(state, found.group)[0], nan=1.0)
    return np.asarray(((state < 1) & (state < middle)) | grown(fell, found.group, 1), dtype=np.bool_)


def _down_charge(fleet: Fleet, found: Found, index: int) -> Hypothesis | None:
    """Return nic/down for a port that was down, if that costs enough; else None."""
    if not _down(found)[index]:
        return None
    instance, host = found.ports.instance[index], fleet.ranks.host[int(found.ports.rank[index])]
    state = float(np.nan_to_num(found.ports.value("nic.state")[index], nan=1.0))
    fell = float(np.nan_to_num(found.ports.value("nic.link_downed")[index]))
    transfer = found.scale.transfer
    down_s = (1 - state) * found.scale.window_s / found.scale.steps
    longer = float(np.mean(transfer) - np.quantile(transfer, 0.25)) if fell > 0 else 0.0
    lost = min(max(down_s, longer), float(np.mean(transfer))) if state > limits.NOTHING else _by_detour(found)
    if found.slower()[index]:
        lost = max(lost, float(found.lost_s[index]))
    if not found.scale.counts(lost, limits.EFFECT_SHARE):
        return None
    evidence = [Evidence("sysfs", f"{instance} active", 100 * state, 100.0, "% of the window", int(found.peers[index]))]
    if fell > 0:
        evidence.append(Evidence("sysfs", f"links lost by {instance}", fell, 0.0, "events", int(found.peers[index])))
    action = (
        f"{instance}{after('of', host)} loses its link: change cable or transceiver, then the switch port "
        f"(`ibstat {instance.partition('/')[0]}`, `dmesg -T | grep -i link`)."
    )
    ratio = max(1 - lost / max(float(np.mean(transfer)), 1e-9), 0.05)
    return found.charge(fleet, index, "nic", "down", CONVICTED, evidence, action, "", lost, ratio)


def _by_detour(found: Found) -> float:
    """Return the seconds per step lost by a port that was never active, by the load of the busiest other port.

    transfer · (1 - median bytes / largest bytes).
    """
    moved = found.ports.bytes
    moved = moved[moved > 0]
    if len(moved) < 2:
        return 0.0
    return found.scale.transfer_s * (1 - median(moved) / float(moved.max()))


# ---- speed -------------------------------------------------------------------------------------------------------------


def _speed(found: Found) -> Floats:
    """Return each port's reported link speed over its peers' median; 1 unless limits.HALVED of that or less.

    Also 1 if above limits.HALVED of its own capability, where that is reported. Without peers, over
    its capability.
    """
    speed, able = found.ports.value("nic.speed_hz"), found.ports.limit("nic.speed_hz")
    middle, _, count = peers_of(speed, found.group)
    expected = np.where(count > 0, middle, able)
    # InfiniBand does not report a port's capability: the limit is then the speed itself, and the
    # peers decide.
    told = able > 1.02 * speed
    low = (speed > 0) & (speed <= limits.HALVED * expected) & ~(told & (speed > limits.HALVED * able))
    return np.where(low, np.maximum(speed / expected, limits.NOTHING), 1.0)


def _speed_charge(fleet: Fleet, found: Found, index: int) -> Hypothesis | None:
    """Return nic/speed-degraded for a port of too low a link speed, if that costs enough; else None."""
    share = float(_speed(found)[index])
    if share >= 1:
        return None
    measured = bool(np.isfinite(found.ratio[index]))
    lost, ratio = (
        (float(found.lost_s[index]), float(found.ratio[index])) if measured else _by_speed(found, index, share)
    )
    if (measured and not found.slower()[index]) or not found.scale.counts(lost, limits.EFFECT_SHARE):
        return None
    instance, host = found.ports.instance[index], fleet.ranks.host[int(found.ports.rank[index])]
    speed, able = float(found.ports.value("nic.speed_hz")[index]), float(found.ports.limit("nic.speed_hz")[index])
    count = int(found.peers[index])
    told = [Evidence("sysfs", f"speed of {instance}", speed, speed / share, "bytes/s", count)]
    if able > 1.02 * speed:
        told.append(Evidence("sysfs", f"capability of {instance}", rate(able), None, ""))
    width = found.ports.value("nic.width")
    lanes = peers_of(width, found.group)[0][index]
    if width[index] < lanes:
        told.append(Evidence("sysfs", f"lanes of {instance}", float(width[index]), float(lanes), "lanes", count))
    action = (
        f"{instance}{after('of', host)} came up below its speed: reseat or change cable and transceiver, look at the switch port's speed "
        f"(`ibstat {instance.partition('/')[0]}`, `ethtool <interface>`)."
    )
    support = CONVICTED if measured and count else REPORTED
    return found.charge(
        fleet, index, "nic", "speed-degraded", support, (*told, *found.evidence(index)), action, "", lost, ratio
    )


def _by_speed(found: Found, index: int, share: float) -> tuple[float, float]:
    """Return (seconds per step lost, `share`) of a port of unmeasured rate, as if it sent at its link speed.

    `share`: its speed over the peers'. Lost: sending time · (1 - share).
    """
    sent, speed = found.ports.bytes[index], found.ports.value("nic.speed_hz")[index]
    sending = (
        min(float(sent / speed) / found.scale.steps, found.scale.transfer_s) if sent > 0 else found.scale.transfer_s
    )
    return sending * (1 - share), share


# ---- errors ------------------------------------------------------------------------------------------------------------


def _error_charge(fleet: Fleet, found: Found, index: int) -> Hypothesis | None:
    """Return nic/errors, nic/slow (pause frames) or network/loss for a slow port by its error counters; else None."""
    if not found.slower()[index]:
        return None
    instance, host = found.ports.instance[index], fleet.ranks.host[int(found.ports.rank[index])]
    rates = found.evidence(index)
    device = instance.partition("/")[0]
    if errors := tuple(found.events(index, ERRORS)):
        more = tuple(found.events(index, LOSSES))
        action = f"Bits arrive broken: clean or change cable and transceiver of {instance}{after('on', host)} (`mlxlink -d {device} -c`)."
        return found.charge(fleet, index, "nic", "errors", CONVICTED, (*errors, *more, *rates), action)
    if pauses := tuple(found.events(index, PAUSES)):
        action = f"{instance}{after('of', host)} asks its switch to pause: look at its PCIe link and at what else uses it (`ethtool -S`)."
        return found.charge(fleet, index, "nic", "slow", SEEN, (*pauses, *rates), action)
    if losses := tuple(found.events(index, LOSSES)):
        congested = tuple(found.events(index, CONGESTED))
        action = f"Packets of {instance}{after('on', host)} are lost on their way: look at the switches' drops, and at ECN and PFC."
        return found.charge(fleet, index, "network", "loss", CONVICTED, (*losses, *congested, *rates), action)
    return None
