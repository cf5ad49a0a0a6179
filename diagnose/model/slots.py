"""Stays in the collectives of a step, one by one: the k-th collective of a step (its slot) is the same one on all ranks.

stay(r,s,k) = wait + transfer.  Collectives end together, so per slot the least stay is the transfer and the rest is waiting:

transfer(s)  = Σ over k of min over r of stay(r,s,k)           <= least sum of stays: of two ranks that wait for each other in turn,
                                                                  each in another slot, the sums hide the waiting
gain         = Σ over k of (min over r of stay'(r,s,k) - min over r of stay(r,s,k)),  stay' the suspects' raised to their innocent
               peers' median: each slot is as much shorter as its last rank comes sooner
late(r,k)    = trimmed mean over s of (median over peers of stay(·,s,k) - stay(r,s,k))   how long the others wait for r there

Used only where the stays are the waiting that the steps show: the sums agree with the time in collectives within 15 % on most ranks
and steps. Collectives that overlap the rank's own work (buckets reduced during the backward pass) do not; then the steps' sums count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.fleet.model import Pipelines, Slots
from rankscope.diagnose.fleet.slots import least_stays, transfer
from rankscope.diagnose.model import waiting
from rankscope.diagnose.stats.robust import nan_median, trimmed_mean
from rankscope.diagnose.verdict.contract import Evidence
from rankscope.probes.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Late:
    """The slot at which the others wait longest for a rank."""

    slot: int
    of: int
    op: str
    late_s: float


def least_stay(wait: Floats, pipelines: Pipelines | None, stays: Slots | None) -> Floats:
    """Per step, the transfer by what is known best: seconds in collectives in which nobody waits for anybody."""
    if pipelines is not None:
        return pipelines.transfer_s
    least = waiting.transfer(wait)
    return least if stays is None else np.fmin(least, transfer(stays))


def gain(slots: Slots, roles: Ints, suspects: Ints) -> float:
    """Seconds per step regained if the suspects (rows) came to every collective when their innocent peers do."""
    if len(suspects) == 0 or len(suspects) >= len(roles):
        return 0.0
    stay = slots.stay_s
    better = stay.copy()
    for role in np.unique(roles[suspects]):
        mine = suspects[roles[suspects] == role]
        innocent = np.setdiff1d(np.flatnonzero(roles == role), mine)
        if len(innocent):
            better[mine] = np.fmax(stay[mine], nan_median(stay[innocent], 0)[None])
    better[np.isnan(stay)] = np.nan
    shorter = (least_stays(better) - least_stays(stay)).sum(axis=1)
    return max(float(np.nan_to_num(trimmed_mean(shorter[None, :])[0])), 0.0)


def latest(slots: Slots, roles: Ints, row: int) -> Late | None:
    """Where in the step the others wait for a rank; None where they do nowhere."""
    peers = np.setdiff1d(np.flatnonzero(roles == roles[row]), [row])
    if len(peers) == 0:
        return None
    late = trimmed_mean((nan_median(slots.stay_s[peers], 0) - slots.stay_s[row]).T)
    if not np.isfinite(late).any():
        return None
    slot = int(np.nanargmax(late))
    if not late[slot] > 0:
        return None
    return Late(slot, len(slots.ops), slots.ops[slot], float(late[slot]))


def late_evidence(slots: Slots | None, roles: Ints, row: int) -> tuple[Evidence, ...]:
    """Evidence for a suspect: at which of several collectives the others wait for it."""
    if slots is None or len(slots.ops) < 2 or (late := latest(slots, roles, row)) is None:
        return ()
    measure = f"the others wait for it at collective {late.slot + 1} of {late.of} ({late.op})"
    return (Evidence("calls", measure, late.late_s, None, "s/step"),)
