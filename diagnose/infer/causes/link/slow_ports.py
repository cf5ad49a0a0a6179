"""Which NIC, NVLink or PCIe link prolongs the transfer; no rank is slow itself.

In a ring every step ends with the slowest link: its rate is low and flat, its peers burst and wait.
With the rate of port i while it moves and ρ(i) = rate(i) / median rate of its peers (ports of one
nominal speed that carry as much):

sending(i) = bytes(i) / rate(i) per step, at most the transfer (the transfer where either is
             unknown)
lost(i)    = sending(i) · (1 - ρ(i)): what the step gains if i were as fast as its peers

Evidence for: a counter of the port (nic.py, nvlink.py; a degraded PCIe link above it) with ρ <= 0.9
and 5 % of the step lost. Without a counter: 5 % lost, a rate so far below the peers' that its score
admits it (-ln P(N >= z) + ln 3 - ln ports, 8.5 nats), and either ρ <= 0.5 and no burstier than
they, or ρ <= 0.9 and σ at most half of theirs: the link itself, network/slow-link (nvlink/slow).
Evidence against: what moved on all peers; a rate like the peers'.

Suspects divide the lost time of the slowest of them, because a ring waits for that one. Interfaces
that carry the job's TCP flows are judged by the flows (slow_flows.py) unless a counter of their own
moved.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, NO_COUNTER, SEEN, Hypothesis, log_odds
from rankscope.diagnose.infer.causes.link import nic, nvlink
from rankscope.diagnose.infer.causes.link.compared_ports import Found, Scale, link_charge
from rankscope.diagnose.infer.causes.rank import pcie
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.counters import Counter
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.ports import Ports, peers_of, ports
from rankscope.diagnose.infer.model.evidence.pcie_links import degraded, narrow_ranks
from rankscope.diagnose.infer.verdict.contract import RULED_OUT, Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.stats.student import chance, nats
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats, Ints


def judge(fleet: Fleet, steps: int, step_s: float, transfer: Floats) -> tuple[Hypothesis, ...]:
    """Return hypotheses on ports and links that explain a large part of the transfer, worst first.

    `steps`: in the whole window; `transfer`: seconds of each judged step.
    """
    transfer = transfer[np.isfinite(transfer)]
    if steps < 1 or len(transfer) == 0:
        return ()
    scale = Scale(steps, step_s, fleet.seconds, transfer)
    if scale.transfer_s < max(limits.EFFECT_SHARE * step_s, limits.EFFECT_SECONDS):
        return ()
    nvlinks, nics = (Found.of(ports(fleet, prefix), prefix, scale) for prefix in (nvlink.PREFIX, nic.PREFIX))
    devices = Found.of(ports(fleet, "pcie."), "pcie.", scale)
    charges = _of_nics(fleet, nics)
    charges += _through_pcie(fleet, nics, devices, charges)
    charges += _one_link(_alone(fleet, nics, charges))
    charges += _of_nvlinks(fleet, nvlinks, float("nan") if charges else _moving(nics, nvlinks))
    charges += _alone(fleet, nvlinks, charges)
    # Where NICs and NVLinks are measured, a slow device shows there; its other traffic is copies.
    elsewhere = np.concatenate([each.ports.rank[np.isfinite(each.ratio)] for each in (nvlinks, nics)])
    charges += _of_pcie(fleet, scale, devices, np.unique(elsewhere))
    return _shared(charges)


# ---- NICs and NVLinks --------------------------------------------------------------------------------------------------


def _of_nics(fleet: Fleet, found: Found) -> list[Hypothesis]:
    """Return hypotheses on NICs confirmed by a counter of their own."""
    made = (nic.charge(fleet, found, index) for index in found.candidates(nic.moved(found), nic.gone(found)).tolist())
    return [charge for charge in made if charge is not None]


def _of_nvlinks(fleet: Fleet, found: Found, moving: float) -> list[Hypothesis]:
    """Return hypotheses on GPUs confirmed by a counter of their NVLinks.

    `moving`: share of the transfer in which the job's other links move data; NaN if unknown.
    """
    moved = nvlink.moved(found)
    waited = moved & (moving <= limits.NEARLY_ALL)
    made = (nvlink.charge(fleet, found, index, moving) for index in found.candidates(moved, waited).tolist())
    return [charge for charge in made if charge is not None]


def _moving(nics: Found, nvlinks: Found) -> float:
    """Return the share of the transfer (0..1) in which the job's links move data; NaN if unknown.

    By NICs: median of mean use / use while moving. Without them: (bytes of the median GPU / 90 % of
    its links' speed) / transfer.
    """
    speed = nics.ports.value("nic.speed_hz")
    duty = nics.ports.value("nic.collective_mu") * speed / nics.rate
    if np.isfinite(duty).any():
        return min(float(np.nanmedian(duty)), 1.0)
    needed = nvlinks.ports.bytes / (limits.NEARLY_ALL * nvlinks.ports.limit("nvlink.burst_hz")) / nvlinks.scale.steps
    known = needed[np.isfinite(needed) & (needed > 0)]
    return min(median(known) / nvlinks.scale.transfer_s, 1.0) if len(known) else float("nan")


def _through_pcie(fleet: Fleet, found: Found, devices: Found, known: list[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses on NICs that are slow because a PCIe link of their rank is degraded or errs.

    `known`: hypotheses so far; their ranks are left out.
    """
    rows = np.flatnonzero(found.slower())
    rows = rows[np.isin(found.ports.rank[rows], [row for charge in known for row in charge.rows], invert=True)]
    narrow, result = set(narrow_ranks(fleet).tolist()), []
    erring = devices.moved(pcie.ERRORS)
    for index in rows[np.argsort(found.ratio[rows], kind="stable")][: budgets.EXAMINED].tolist():
        rank, told = int(found.ports.rank[index]), found.evidence(index)
        host = fleet.ranks.host[rank]
        link = degraded(fleet, rank, _others(fleet, rank)) if rank in narrow else None
        if link is not None:
            told = (*link.evidence(), *told)
            result.append(
                found.charge(fleet, index, "pcie", "link-degraded", CONVICTED, told, link.action(host), link.instance)
            )
            continue
        for device in np.flatnonzero(erring & (devices.ports.rank == rank))[:1].tolist():
            instance = devices.ports.instance[device]
            told = (*devices.events(device, pcie.ERRORS), *told)
            result.append(
                found.charge(fleet, index, "pcie", "errors", SEEN, told, pcie.errors_action(instance, host), instance)
            )
    return result


@cause("nvlink", "slow", scope="link", witness="rate below the peers' while moving", rests_on=[Source.GPU],
       says="NVLinks of {instance|a GPU} are slower than the others")  # fmt: skip
def _alone(fleet: Fleet, found: Found, known: list[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses on ports that are slow by their rate alone, the slowest first.

    `known`: hypotheses so far; a port no slower than one of these, or of the same rank, is left
        out.
    """
    sigma = found.ports.value(f"{found.prefix}collective_sigma")
    theirs = peers_of(sigma, found.group)[0]
    step_s = found.scale.step_s
    flat = (found.ratio <= limits.HOLDS_LEAST) & ~(sigma > theirs)  # an unknown σ is no evidence against
    flat |= (found.ratio <= limits.NEARLY_ALL) & (sigma <= limits.HOLDS_LEAST * theirs)
    flat &= found.lost_s >= max(limits.EFFECT_SHARE * step_s, limits.EFFECT_SECONDS)
    flat &= _clear(found)
    flat &= ~_judged_by_flows(fleet, found.ports)
    rows = np.flatnonzero(flat)
    result: list[Hypothesis] = []
    for index in rows[np.argsort(found.ratio[rows], kind="stable")][: budgets.EXAMINED].tolist():
        ratio, rank = float(found.ratio[index]), int(found.ports.rank[index])
        # It may be slow only because it exchanges data with a port as slow that is already named.
        if any(charge.ratio <= 1.25 * ratio or rank in charge.rows for charge in known):
            continue
        instance, host = found.ports.instance[index], fleet.ranks.host[rank]
        nothing = Evidence(
            "counters", f"errors, speed and state of {instance}", "as its peers'", None, "", role=RULED_OUT
        )
        told = (*found.evidence(index), nothing)
        if found.prefix == nic.PREFIX:
            action = nic.slow_action(host, instance)
            result.append(found.charge(fleet, index, "network", "slow-link", NO_COUNTER, told, action))
        else:
            action = nvlink.slow_action(host, instance)
            result.append(found.charge(fleet, index, "nvlink", "slow", NO_COUNTER, told, action))
    return result


def _clear(found: Found) -> Bools:
    """Mask of ports whose rate is so far below the peers' that its score is admitted.

    The score: -ln P(N >= z) + log odds of NO_COUNTER - ln(number of ports compared).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.nan_to_num((found.peers_rate - found.rate) / found.spread, posinf=np.inf)
    compared = max(int(np.isfinite(found.ratio).sum()), 1)
    score = nats(chance(z, np.full(len(z), np.inf))) + log_odds(NO_COUNTER) - np.log(compared)
    return np.asarray(score >= limits.SCORE_LEAST, dtype=np.bool_)


def _one_link(found: list[Hypothesis]) -> list[Hypothesis]:
    """Merge two equally slow ports without a counter: they are the two ends of one link."""
    if len(found) != 2 or found[0].ratio < 0.8 * found[1].ratio:
        return found
    one, other = found
    what = f"as slow, perhaps the other end of the link: {other.instance}{after('of', other.host)}"
    end = Evidence("counters", what, 100 * other.ratio, 100.0, "% of the peers' rate")
    rows = tuple(sorted({*one.rows, *other.rows}))
    return [replace(one, rows=rows, evidence=(*one.evidence, end))]


def _judged_by_flows(fleet: Fleet, seen: Ports) -> Bools:
    """Mask the ports that are interfaces of TCP flows in the same network namespace (slow_flows.py compares these)."""
    interfaces = {(int(fleet.ranks.netns[row]), name) for row, name in
                  zip(fleet.flows.rank.tolist(), fleet.flows.interface, strict=True) if name}  # fmt: skip
    netns = fleet.ranks.netns[seen.rank].tolist()
    return np.array(
        [(space, name) in interfaces for space, name in zip(netns, seen.instance, strict=True)], dtype=np.bool_
    )


def _others(fleet: Fleet, rank: int) -> Ints:
    """Return the rows of all ranks but this one."""
    return np.delete(np.arange(len(fleet.ranks)), rank)


# ---- GPUs that talk over PCIe, unseen by any NIC or NVLink -------------------------------------------------------------


@cause("pcie", "link-degraded", scope="link", witness="the same, above a port or GPU", rests_on=[Source.PORTS])
@cause("pcie", "errors", scope="link", witness="the same, above a port or GPU", rests_on=[Source.PORTS])
def _of_pcie(fleet: Fleet, scale: Scale, devices: Found, elsewhere: Ints) -> list[Hypothesis]:
    """Return hypotheses on ranks whose GPUs are slow by a PCIe link that is degraded or errs.

    `elsewhere`: ranks whose NIC or NVLink rates are measured; they are left out.
    """
    result: list[Hypothesis] = []
    for rank in narrow_ranks(fleet).tolist():
        link = degraded(fleet, rank, _others(fleet, rank))
        cost = _cost(fleet, scale, rank) if link is not None and rank not in elsewhere else None
        if link is None or cost is None:
            continue
        host, (lost, ratio, told) = fleet.ranks.host[rank], cost
        evidence = (*link.evidence(), told)
        result.append(
            link_charge(
                "pcie",
                "link-degraded",
                host,
                link.instance,
                (rank,),
                lost,
                ratio,
                CONVICTED,
                evidence,
                link.action(host),
            )
        )
    for index in np.flatnonzero(devices.moved(pcie.ERRORS))[: budgets.EXAMINED].tolist():
        instance, rank = devices.ports.instance[index], int(devices.ports.rank[index])
        cost = _cost(fleet, scale, rank) if rank not in elsewhere else None
        if cost is not None and not any(rank in charge.rows for charge in result):
            lost, ratio, told = cost
            action = pcie.errors_action(instance, fleet.ranks.host[rank])
            evidence = (*devices.events(index, pcie.ERRORS), told)
            result.append(devices.charge(fleet, index, "pcie", "errors", SEEN, evidence, action, "", lost, ratio))
    return result


def _cost(fleet: Fleet, scale: Scale, rank: int) -> tuple[float, float, Evidence] | None:
    """Return (seconds per step lost, rate over the peers', evidence) of a rank's slowest PCIe device, or None.

    None if it is not slow, or not measured.
    """
    counters = fleet.counters
    mine = list(counters.of("pcie.burst_hz", rank))
    rows = counters.rows("pcie.burst_hz")
    others = counters.table.value[rows[(counters.table.rank[rows] >= 0) & (counters.table.rank[rows] != rank)]]
    if not mine or not len(others):
        return None
    slowest: Counter = min(mine, key=lambda c: c.value)
    sent = [
        c.value
        for name in ("pcie.rx_bytes", "pcie.tx_bytes")
        for c in counters.of(name, rank)
        if c.instance == slowest.instance
    ]
    rate, expected = slowest.value, median(others)
    if not sent or not 0 < rate <= limits.NEARLY_ALL * expected:
        return None
    lost = min(max(sent) / rate / scale.steps, scale.transfer_s) * (1 - rate / expected)
    if not scale.counts(lost, limits.EFFECT_SHARE):
        return None
    return lost, rate / expected, Evidence("nvml", "rate while moving", rate, expected, "bytes/s", len(others))


# ---- together ----------------------------------------------------------------------------------------------------------


def _shared(found: list[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Merge hypotheses on one port, and divide the loss of the worst port among all: a ring waits for the slowest.

    Of several causes of one port the one with most lost time · support remains.
    """
    best: dict[tuple[str, str], Hypothesis] = {}
    for charge in sorted(found, key=lambda each: -each.lost_s * each.support):
        same = best.get((charge.host, charge.instance))
        if same is None:
            best[charge.host, charge.instance] = charge
        elif (same.component, same.cause) == (charge.component, charge.cause):
            best[charge.host, charge.instance] = replace(same, rows=tuple(sorted({*same.rows, *charge.rows})))
    charges = sorted(best.values(), key=lambda each: -each.lost_s)
    if not charges:
        return ()
    weight = np.array([charge.lost_s for charge in charges])
    shares = weight[0] * weight / weight.sum()
    return tuple(replace(charge, lost_s=float(share)) for charge, share in zip(charges, shares, strict=True))
