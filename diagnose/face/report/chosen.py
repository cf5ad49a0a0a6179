"""Choose the rank that a report shows, the suspect or the rank farthest from its peers, and a typical peer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.stats.robust import nan_median, peers_median
from rankscope.probes.base.arrays import Bools, Floats, Ints

PEERS_MOST = 256  # peers compared with: enough for a stable median


@dataclass(frozen=True, slots=True)
class Chosen:
    """Ranks to show, as rows of fleet.ranks.

    `culprit`: the rank that is shown; `peer`: a typical peer, -1 if there is none; `peers`: unsuspected ranks of the
    same role, nearest to their median first; `roles`: role number of each rank; `accused`: suspects.
    """

    culprit: int
    peer: int
    peers: Ints
    roles: Ints
    accused: Bools
    above_s: Floats  # own time per step above the unsuspected peers' median; NaN: unknown

    def named(self, fleet: Fleet, row: int) -> str:
        """Name a rank by its row, 'rank 3 on node-0'; a guessed number gets '?'."""
        host = fleet.ranks.host[row]
        number = int(fleet.ranks.number[row])
        guess = "?" if number in fleet.ranks.guessed else ""
        return f"rank {number}{guess}{' on ' + host if host else ''}"


def choose(fleet: Fleet, verdict: Verdict) -> Chosen:
    """Choose the rank farthest above its peers, among the first suspect's ranks, or all ranks if there is none."""
    groups = roles(fleet)
    named = {rank for suspect in verdict.suspects for rank in suspect.ranks}
    accused = np.isin(fleet.ranks.number, np.array(sorted(named), dtype=np.int64))
    own_s = nan_median(fleet.steps.own_s, 1) if fleet.steps.count else np.full(len(fleet.ranks), np.nan)
    above = (own_s[:, None] - peers_median(own_s[:, None], groups, ~accused))[:, 0]
    worst = np.where(np.isfinite(above), above, -np.inf)
    first = np.isin(fleet.ranks.number, verdict.suspects[0].ranks) if verdict.suspects else np.ones(len(above), bool)
    candidates = np.flatnonzero(first if first.any() else np.ones(len(above), bool))
    culprit = int(candidates[np.argmax(worst[candidates])])
    peers = _peers(groups, accused, own_s, culprit)
    return Chosen(culprit, int(peers[0]) if len(peers) else -1, peers, groups, accused, above)


def _peers(groups: Ints, accused: Bools, own_s: Floats, culprit: int) -> Ints:
    """Return the unsuspected ranks of the same role, nearest to their median first; suspects if there are no others.

    `groups`: role number of each rank; `own_s`: own time of each per step; `culprit`: the row that is left out.
    """
    alike = groups == groups[culprit]
    alike[culprit] = False
    found = np.flatnonzero(alike & ~accused)
    if not len(found):
        found = np.flatnonzero(alike)
    known = own_s[found]
    middle = np.median(known[np.isfinite(known)]) if np.isfinite(known).any() else 0.0
    distance = np.where(np.isfinite(known), np.abs(known - middle), np.inf)
    nearest: Ints = found[np.argsort(distance, kind="stable")][:PEERS_MOST]
    return nearest
