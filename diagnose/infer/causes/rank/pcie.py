"""PCIe: copies between host and device take longer than on the peers.

Evidence for: a link (GPU, bridge above it) below its capability and below the peers' same link.
With the ratio r of the link's speed x width over the peers' and the copy time m, predicted = m · (1
- r) must be half of the excess. Where copies are not timed, m = bytes / rate while moving. Errors:
replays or AER at 1/s and ten times the peers'.

Evidence against: peers whose links are as narrow, or have as many errors; a prediction far below
the excess. Where the rank copies more bytes, and at the rate of its peers that takes half of the
excess, the cause is python/blocking-call for a function that copies where theirs do not, else
workload/data-imbalance. Narrow links that delay transfers between ranks but no copy:
../link/slow_ports.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.rank.device import (
    Beside,
    DeviceTime,
    behaviour,
    beside,
    device_time,
    grown,
    of_function,
    slow,
)
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.model.evidence.event_words import event_words
from rankscope.diagnose.infer.model.evidence.pcie_links import Link, degraded
from rankscope.diagnose.infer.model.functions import sample
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Floats

_COPIES = "{function|it} copies between host and GPU what its peers do not"
ERRORS = ("pcie.aer_fatal", "pcie.aer_nonfatal", "pcie.replays", "pcie.aer_correctable")


@cause("pcie", "link-degraded", witness="width or speed below the peers'", rests_on=[Source.PORTS],
       says="the PCIe link {instance|} runs below what it can do")  # fmt: skip
@cause("pcie", "errors", witness="replays or AER that the peers lack", rests_on=[Source.PORTS],
       says="the PCIe link {instance|} has errors")  # fmt: skip
@cause("pcie", "slow", witness="copies longer than the peers'", rests_on=[Source.CALLS],
       says="the PCIe link {instance|} is slower than the others")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose at most one cause for the rank's longer copies, the first that applies.

    A degraded link that explains half of the excess (of the steps, where copies are not timed);
    errors of the link; more bytes than the peers copy (python/blocking-call for a function that does
    so, else workload/data-imbalance); otherwise pcie/slow.
    """
    device = device_time(case, "memory")
    link = degraded(case.fleet, case.rank, case.peers)
    if link is not None and (charge := _link_charge(case, device, link)) is not None:
        yield charge
        return
    if device is None:
        return
    errors = worst_errors(case)
    if errors is not None:
        name = event_words(errors.counter.name)
        yield case.charge(
            "pcie", "errors", device.excess_s, SEEN,
            (errors.evidence("pcie", "events", f"{name} on {errors.counter.instance}"), *behaviour(case, device)[:1]),
            errors_action(errors.counter.instance, case.host), errors.counter.instance, device.function,
        )  # fmt: skip
        return
    if (copied := _copied_more(case, device)) is not None:
        yield of_function(case, "memory", "copies so much between host and GPU", _COPIES) or _more_data(
            case, device, copied
        )
        return
    why = f"No PCIe counter of this rank{after('on', case.host)} says why"
    if case.fleet.timed:
        why = "Timings hold no counters that say why"
    action = (
        f"{why}: look at the link (`lspci -vv`, LnkSta), at pinned memory, and on which "
        "NUMA node the process and its GPU are (`nvidia-smi topo -m`)."
    )
    rate = beside(case, "pcie.burst_hz", lowest=True)
    told = (rate.evidence("nvml", "bytes/s", "rate while moving"),) if rate is not None and rate.known else ()
    yield slow(case, device, "pcie", "slow", action, counters=told)


def _copied_more(case: Case, device: DeviceTime) -> Evidence | None:
    """Return the evidence of more copied bytes than the peers' if these explain half of the excess; else None.

    Seconds explained: (b - b̃) / (b̃ / t̃), b bytes and t seconds, ~ the peers' medians.
    """
    seconds, copied = _seconds_and_bytes(case)
    mine, peers = copied[0], median(copied[1:]) if len(copied) > 1 else 0.0
    spent = median(seconds[1:]) if len(seconds) > 1 else 0.0
    if not (peers > 0 and spent > 0 and (mine - peers) * spent / peers >= limits.HOLDS_LEAST * device.excess_s):
        return None
    steps = max(case.steps, 1)
    return Evidence(
        "functions", "copied between host and GPU", mine / steps, peers / steps, "bytes/step", len(case.peers)
    )


def _seconds_and_bytes(case: Case) -> tuple[Floats, Floats]:
    """Return (seconds per step in copies, bytes copied in the window); in each the rank, then its peers."""
    table, ranks = case.fleet.patterns, np.append(case.rank, sample(case.peers))
    if table.bytes is None:
        return np.zeros(len(ranks)), np.zeros(len(ranks))
    rows = np.flatnonzero(
        (table.kind.codes == table.kind.code("memory")) & (table.thread.codes == table.thread.code("training"))
    )
    size = len(case.fleet.ranks)
    seconds = np.bincount(table.rank[rows], weights=np.nan_to_num(table.per_step_s[rows]), minlength=size)[ranks]
    copied = np.bincount(table.rank[rows], weights=np.maximum(table.bytes[rows], 0), minlength=size)[ranks]
    return np.asarray(seconds, dtype=np.float64), np.asarray(copied, dtype=np.float64)


def _more_data(case: Case, device: DeviceTime, copied: Evidence) -> Hypothesis:
    """Return workload/data-imbalance for copies that take longer only because the rank copies more bytes.

    `copied`: the evidence of the bytes.
    """
    action = (
        "Compare its batch shapes and sequence lengths with its peers': it copies more to its GPU, as fast as they do."
    )
    evidence = (copied, *behaviour(case, device)[:1])
    return case.charge("workload", "data-imbalance", device.excess_s, SEEN, evidence, action, function=device.function)


def worst_errors(case: Case) -> Beside | None:
    """Return the most serious error counter that grew far more than the peers'; None without one."""
    for name in ERRORS:
        serious = name in ("pcie.aer_fatal", "pcie.aer_nonfatal")
        if (found := grown(case, name, 1 if serious else limits.EVENTS_HZ * case.fleet.seconds)) is not None:
            return found
    return None


def errors_action(instance: str, host: str) -> str:
    """Return the advice for a link with errors."""
    return (
        f"Reseat {instance}{after('of', host)}, clean its contacts, check riser and cable (`lspci -vv -s {instance}`: DevSta, "
        "`nvidia-smi -q | grep -i replay`): the link repeats what arrives broken."
    )


def _link_charge(case: Case, device: DeviceTime | None, link: Link) -> Hypothesis | None:
    """Return pcie/link-degraded if the link's ratio predicts half of the excess; else None.

    The excess is that of copies where they are timed (`device`), else that of the steps.
    """
    timed = device is not None and device.excess_s >= limits.PART * case.excess_s
    copying = device.own_s if device is not None and timed else _copying_s(case)
    predicted = copying * (1 - link.ratio)
    measured = device.excess_s if device is not None and timed else case.excess_s
    if predicted < limits.HOLDS_LEAST * measured:
        return None
    what = "copies to and from its GPU" if device is not None and timed else "its steps"
    explained = (
        Evidence("functions", f"longer than its peers in {what}", measured, None, "s/step"),
        Evidence(
            "functions", "of that the link explains, by its speed and width", min(predicted, measured), None, "s/step"
        ),
    )
    seen = behaviour(case, device)[:1] if device is not None and timed else ()
    return case.charge(
        "pcie", "link-degraded", measured, CONVICTED,
        (*link.evidence(), *explained, *seen), link.action(case.host), link.instance,
        device.function if device is not None and timed else None,
    )  # fmt: skip


def _copying_s(case: Case) -> float:
    """Return the seconds per step in which the rank's devices move data over PCIe: bytes / rate while moving."""
    total = 0.0
    rates = {c.instance: c.value for c in case.counters("pcie.burst_hz")}
    for name in ("pcie.rx_bytes", "pcie.tx_bytes"):
        for counter in case.counters(name):
            if rates.get(counter.instance, 0.0) > 0:
                total += counter.value / rates[counter.instance]
    return total / max(case.steps, 1)
