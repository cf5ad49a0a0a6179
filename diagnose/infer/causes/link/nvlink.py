"""NVLinks of one GPU that prolong collectives inside a host: down, with errors, or slow.

Evidence for: links that are down on this GPU and not on its peers; errors (CRC, replay, recovery)
at 1/s and ten times the peers'; both only where the transfer is longer for it. NVLink rates are
means over some 0.1 s, in which all members of a ring move the same, so the GPU's own rate need not
show it. Then the others must wait: during collectives the job's NICs move data in 90 % of the time
or less (mean use over rate while moving), though no NIC is slow; lost = transfer · (1 - that
share). Without NICs that share is the time that the bytes of the median GPU take at 90 % of its
links' speed, over the transfer; without rates, the links that are left.

Evidence against: links that are down on most GPUs (the machine has so many); NICs that move all the
time. Slow without a counter: nvlink/slow.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.link.compared_ports import Found
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.ports import peers_of
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats

PREFIX = "nvlink."
ERRORS = ("nvlink.errors",)


def moved(found: Found) -> Bools:
    """Mask of GPUs on which an NVLink counter moved that did not move on their peers."""
    return np.asarray((_more_down(found) > 0) | found.moved(ERRORS), dtype=np.bool_)


@cause("nvlink", "down", scope="link", witness="links down that the peers have", rests_on=[Source.GPU],
       says="NVLinks of {instance|a GPU} are down")  # fmt: skip
@cause("nvlink", "errors", scope="link", witness="link errors that the peers lack", rests_on=[Source.GPU],
       says="NVLinks of {instance|a GPU} have errors")  # fmt: skip
def charge(fleet: Fleet, found: Found, index: int, moving: float) -> Hypothesis | None:
    """Return the hypothesis on one GPU whose NVLink counters moved; None if its cost is too small.

    `moving`: share of the transfer in which the job's other links move data; NaN if unknown.
    """
    instance = found.ports.instance[index]
    host = fleet.ranks.host[int(found.ports.rank[index])]
    down, total = float(_more_down(found)[index]), float(found.ports.limit("nvlink.links_down")[index])
    lost, ratio = _cost(found, index, down, total, moving)
    if not found.scale.counts(lost, limits.EFFECT_SHARE):
        return None
    rates = found.evidence(index)
    if np.isfinite(moving) and not found.slower()[index]:
        waits = Evidence("counters", "the links of all others move data in", 100 * moving, None, "% of the transfer")
        rates = (waits, *rates)
    number = instance.removeprefix("gpu")
    which = f" -i {number}" if number.isdigit() else ""
    if down > 0:
        value, count = float(found.ports.value("nvlink.links_down")[index]), int(found.peers[index])
        links = Evidence("nvml", f"NVLinks of {instance} that are down", value, value - down, "links", count)
        action = (
            f"See `nvidia-smi nvlink -s{which}` and `dmesg -T | grep -i -e xid -e nvlink`{after('on', host)}: reset {instance} with the "
            "job stopped; if links stay down, drain the host and have bridge, switch and fabricmanager checked."
        )
        return found.charge(fleet, index, "nvlink", "down", CONVICTED, (links, *rates), action, "", lost, ratio)
    action = (
        f"See `nvidia-smi nvlink -e{which}`{after('on', host)}: links of {instance} repeat what arrives broken; have bridge and "
        "switch checked."
    )
    told = (*found.events(index, ERRORS), *rates)
    return found.charge(fleet, index, "nvlink", "errors", SEEN, told, action, "", lost, ratio)


def slow_action(host: str, instance: str) -> str:
    """Return the advice for a GPU whose NVLinks are slow without a known reason."""
    return (
        f"NVLink of {instance}{after('on', host)} is slow and reports no error: check `nvidia-smi nvlink -s` and fabricmanager's log, run "
        "`nccl-tests all_reduce_perf` inside the host."
    )


def _more_down(found: Found) -> Floats:
    """Return the number of links that are down on each GPU, less the peers' median."""
    values = found.ports.value("nvlink.links_down")
    middle = np.nan_to_num(peers_of(values, found.group)[0])
    return np.nan_to_num(values - middle)


def _cost(found: Found, index: int, down: float, total: float, moving: float) -> tuple[float, float]:
    """Return (seconds per step lost, factor by which the transfer would shrink) of one GPU's NVLinks; (0, 1): none.

    By its own rate; else by `moving`, the share of the transfer in which the others move; else by the
    links that are left, all but `down` of `total`.
    """
    if found.slower()[index]:
        return float(found.lost_s[index]), float(found.ratio[index])
    if np.isfinite(moving):
        return (found.scale.transfer_s * (1 - moving), moving) if moving <= limits.NEARLY_ALL else (0.0, 1.0)
    if np.isfinite(found.ratio[index]) or not down > 0:
        return 0.0, 1.0
    left = max(1 - down / total, limits.FEW) if total > 0 else 0.5
    return found.scale.transfer_s * (1 - left), left
