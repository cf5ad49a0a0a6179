"""EROICA's pattern distance (arXiv 2506.08528): how much a rank's patterns differ from its peers'.

Pattern of function f on rank r: (β, μ, σ); stacks of one leaf are summed, μ and σ weighted by β.
Each component is divided by its largest value over the compared ranks, so that it is 0..1.

d(r,q) = |β' - β'| + |μ' - μ'| + |σ' - σ'|; two ranks differ if d >= 0.4
D(r)   = median over peers q of d(r,q)

Only functions with β > 0.01 on the rank count, the rule's own floor. It is evidence, not a test:
where peers are alike its scale is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.waits import waits
from rankscope.diagnose.infer.verdict.contract import DETAIL, Evidence
from rankscope.probes.base.arrays import Floats, Ints

DIFFERS = 0.4


@dataclass(frozen=True, slots=True)
class Distance:
    """The function whose pattern differs most from the peers'."""

    name: str
    distance: float  # D of the rank
    usual: float  # the median D of its peers
    peers: int


def most_unlike(fleet: Fleet, row: int, peers: Ints) -> Distance | None:
    """Return the function of the rank's own work whose pattern differs most from the peers'.

    None if nothing can be compared.
    """
    table = fleet.patterns
    if len(peers) == 0 or table.mu is None or table.sigma is None or len(table) > budgets.CELLS_MOST:
        return None
    if len(peers) > limits.PEERS_EXACT:
        peers = peers[np.linspace(0, len(peers) - 1, limits.PEERS_EXACT).astype(np.int64)]
    ranks = np.append(row, peers)
    place = np.full(len(fleet.ranks), -1, dtype=np.int64)
    place[ranks] = np.arange(len(ranks))
    training = table.thread.codes == table.thread.code("training")
    rows = np.flatnonzero((place[table.rank] >= 0) & training & ~waits(table) & (table.beta > 0))
    if len(rows) == 0:
        return None
    keys, column = np.unique(
        table.kind.codes[rows] * len(table.name.values) + table.name.codes[rows], return_inverse=True
    )
    cell = place[table.rank[rows]] * len(keys) + column.reshape(-1)

    def summed(weight: Floats) -> Floats:
        """Sum a weight of the pattern rows by rank and function (ranks x functions)."""
        total = np.bincount(cell, weights=weight, minlength=len(ranks) * len(keys))
        return np.asarray(total, dtype=np.float64).reshape(len(ranks), len(keys))

    share = table.beta[rows]
    beta = summed(share)
    parts = [beta]
    for values in (table.mu[rows], table.sigma[rows]):
        mean = np.divide(summed(share * np.nan_to_num(values)), beta, out=np.zeros_like(beta), where=beta > 0)
        parts.append(mean)
    normal = [part / np.maximum(part.max(axis=0), 1e-12) for part in parts]
    large = beta[0] > limits.NOTHING
    if not large.any():
        return None
    apart = _apart(normal, 0)
    best = int(np.argmax(np.where(large, apart, -1.0)))
    name = table.name.values[int(keys[best]) % len(table.name.values)]
    of_best = [part[:, best : best + 1] for part in normal]
    usual = np.median([_apart(of_best, index)[0] for index in range(1, len(ranks))])
    return Distance(name, float(apart[best]), float(usual), len(peers))


def _apart(normal: list[Floats], index: int) -> Floats:
    """Median over the other ranks of their distance to one rank, by function.

    `normal`: β, μ and σ as shares of the largest, each ranks x functions; `index`: the rank's row
    in them.
    """
    distance = sum(np.abs(np.delete(part, index, axis=0) - part[index]) for part in normal)
    return np.asarray(np.median(distance, axis=0), dtype=np.float64)


def distance_evidence(fleet: Fleet, row: int, peers: Ints) -> tuple[Evidence, ...]:
    """Return a line of evidence if the rank's patterns differ from its peers' by EROICA's measure; else ()."""
    found = most_unlike(fleet, row, peers)
    if found is None or found.distance < DIFFERS:
        return ()
    measure = f"how unlike its peers it is in {found.name} (0: alike; from {DIFFERS} on: different)"
    return (Evidence("patterns", measure, found.distance, found.usual, "", found.peers, DETAIL),)
