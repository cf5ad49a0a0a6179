"""Stays in the single collectives of a step; the k-th one (a slot) is common to all ranks.

stay(r,s,k) = wait + transfer. Collectives end together: in a slot the least stay is the transfer,
              the rest is waiting.

transfer(s)  = Σ over k of min over r of stay(r,s,k), at most the least sum of stays: where two
               ranks wait for each other in different slots, the sums hide the waiting
gain         = Σ over k of (min over r of stay'(r,s,k) - min over r of stay(r,s,k)), stay' with the
               suspects' raised to the median of their other peers: each slot is shorter by how much
               sooner its last rank comes
alone(u)     = median over s of Σ over k of max(min over r not in u of stay(r,s,k) - min over r in u
               of stay(r,s,k), 0): how long all others wait for role u alone
late(r,k)    = trimmed mean over s of (median over peers of stay(·,s,k) - stay(r,s,k)): how long the
               others wait for r there

From the gain the greater of two is subtracted: how long any rank in their place would delay the
others (what these wait for one rank alone that is no suspect); and Σ over k of how much earlier
than its other peers a suspect usually comes (work that it does in another slot than they; ends that
are not simultaneous, where the last to come leaves first and waits in the next slot), without its
shorter queueing for a CPU: a rank with a CPU of its own arrives early at every collective. Of roles
that work at once the others wait for one only, by as much as it works longer; of roles that work
one after another each is waited for as long as it works.

This is used where the stays are the waiting that the steps show: the sums agree with the time in
collectives within 10 % on most ranks and steps. Elsewhere, because steps of ranks begin at
different collectives, or stays include queues and own work, the transfer is that of the steps'
sums, and the gain counts as long as the waiting in single collectives is no more than that of the
steps (fleet/collectives/sequence.py). With overlapping collectives (buckets reduced during the
backward pass) it is more: of these stays as much counts as is waited. Several then share one time,
and their gain adds to that by the sums at most what these can hide: the queueing that one suspect
is spared; of several that wait for each other in turn, the whole transfer of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.collectives.slots import transfer
from rankscope.diagnose.infer.fleet.collectives.stays import least_stays
from rankscope.diagnose.infer.fleet.model import Pipelines, Slots
from rankscope.diagnose.infer.model import waiting
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.beside import Medians
from rankscope.diagnose.stats.robust import median, nan_median, trimmed_mean
from rankscope.probes.base.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Late:
    """The slot (0 is the first) of `of` slots at which the others wait longest for a rank.

    `late_s`: seconds per step.
    """

    slot: int
    of: int
    op: str
    late_s: float


def least_stay(wait: Floats, pipelines: Pipelines | None, stays: Slots | None) -> Floats:
    """Best estimate of each step's transfer: seconds in collectives in which no rank waits for
    another.
    """
    if pipelines is not None:
        return pipelines.transfer_s
    least = waiting.transfer(wait)
    return least if stays is None or not stays.whole else np.fmin(least, transfer(stays))


def gain(slots: Slots, roles: Ints, suspects: Ints) -> float:
    """Seconds per step regained if the suspects (rows) entered every collective when their peers do."""
    return Regained(slots, roles, suspects).by(suspects)


class Regained:
    """Gains of many sets of suspects, all among these rows, with common parts computed once.

    `queue_s`: of each rank, seconds per step in the queue for a CPU outside collectives.
    """

    def __init__(self, slots: Slots, roles: Ints, rows: Ints, queue_s: Floats | None = None) -> None:
        self._stay, self._roles, self._rows = slots.stay_s, roles, rows
        self._least = least_stays(self._stay)
        others = np.delete(self._stay, rows, axis=0)
        self._of_others = np.where(np.isfinite(others), others, np.inf).min(axis=0, initial=np.inf)
        self._waits = _waits_alone_s(self._stay)
        # Whether one collective ends before the next begins; else used for the reported loss only.
        self.apart = slots.part >= 1
        self._queue_s = np.zeros(len(roles)) if queue_s is None else queue_s
        self._peers: dict[int, Medians] = {}

    def by(self, suspects: Ints) -> float:
        """Seconds per step regained by repairing these suspects (rows); 0 if there are none or all ranks are."""
        stay, roles = self._stay, self._roles
        if len(suspects) == 0 or len(suspects) >= len(roles):
            return 0.0
        better, early_s = stay[self._rows], 0.0
        for role in np.unique(roles[suspects]).tolist():
            mine = suspects[roles[suspects] == role]
            if len(mine) == np.count_nonzero(roles == role):
                continue
            usual, own = self._usual(role, mine), stay[mine]
            better[np.searchsorted(self._rows, mine)] = np.where(np.isnan(own), own, np.fmax(own, usual))
            early = trimmed_mean((own - usual).transpose(0, 2, 1).reshape(-1, own.shape[1])).reshape(len(mine), -1)
            moved_s = np.maximum(np.nan_to_num(early), 0.0).sum(axis=1) - self._spared_s(role, mine)
            early_s += float(np.maximum(moved_s, 0.0).sum())
        least = np.fmin(self._of_others, np.fmin.reduce(better, axis=0, initial=np.inf))
        shorter = (np.where(np.isnan(self._least), np.nan, least) - self._least).sum(axis=1)
        gained_s = float(np.nan_to_num(trimmed_mean(shorter[None, :])[0]))
        kept_s = 0.0 if self._waits is None else median(np.delete(self._waits, suspects))
        return max(gained_s - max(len(suspects) * kept_s, early_s), 0.0)

    def hidden_s(self, suspects: Ints, transfer_s: float) -> float:
        """Upper bound of the wait for these suspects that the sums of a step can hide, seconds per step.

        Infinite where collectives do not overlap. `transfer_s`: the transfer according to the sums,
        without what links take of it.
        """
        if self.apart:
            return float("inf")
        spared_s = (
            float("inf") if len(suspects) > 1 else float(self._spared_s(int(self._roles[suspects[0]]), suspects)[0])
        )
        return max(min(spared_s, transfer_s), 0.0)

    def _spared_s(self, role: int, mine: Ints) -> Floats:
        """Seconds per step that each of these ranks queues less for a CPU than the others of its role; at least 0."""
        others = np.setdiff1d(np.flatnonzero(self._roles == role), mine)
        if not len(others):
            return np.zeros(len(mine))
        return np.asarray(np.maximum(np.median(self._queue_s[others]) - self._queue_s[mine], 0.0), dtype=np.float64)

    def _usual(self, role: int, mine: Ints) -> Floats:
        """Median stay, steps x slots, of the ranks of a role without these."""
        members, stay = np.flatnonzero(self._roles == role), self._stay.reshape(len(self._stay), self._least.size)
        asked = np.isin(members, self._rows)
        if role not in self._peers:
            self._peers[role] = Medians(stay[members[~asked]])
        return self._peers[role].beside(stay[np.setdiff1d(members[asked], mine)]).reshape(self._least.shape)


def _waits_alone_s(stay: Floats) -> Floats | None:
    """Seconds per step that the others wait for each rank alone, summed over collectives.

    `stay`: ranks x steps x slots. None where no step is known on all ranks, or there are no others.
    """
    known = np.isfinite(stay).all(axis=(0, 2))
    if len(stay) < 2 or not known.any():
        return None
    least, second = np.partition(stay[:, known], 1, axis=0)[:2]
    last = stay[:, known].argmin(axis=0)
    return np.bincount(last.ravel(), (second - least).ravel(), len(stay)) / np.count_nonzero(known)


def alone_s(slots: Slots, roles: Ints) -> Floats | None:
    """alone(u): seconds per step that all others wait for each role alone, roles ascending.

    None with one role or too few steps.
    """
    numbers = np.unique(roles)
    if len(numbers) < 2:
        return None
    least = np.stack([least_stays(slots.stay_s[roles == role]) for role in numbers])
    least = least[:, np.isfinite(least).all(axis=(0, 2))]
    if least.shape[1] < limits.STEPS_LEAST:
        return None
    others = np.stack([np.delete(least, at, axis=0).min(axis=0) for at in range(len(numbers))])
    return np.asarray(np.median(np.maximum(others - least, 0.0).sum(axis=2), axis=1), dtype=np.float64)


def latest(slots: Slots, roles: Ints, row: int) -> Late | None:
    """Return the slot at which the others wait longest for a rank; None where they never do."""
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
    """Evidence for a suspect: the collective of several at which the others wait for it."""
    if slots is None or len(slots.ops) < 2 or (late := latest(slots, roles, row)) is None:
        return ()
    measure = f"the others wait for it at collective {late.slot + 1} of {late.of} ({late.op})"
    return (Evidence("calls", measure, late.late_s, None, "s/step"),)
