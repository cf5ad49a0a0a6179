"""Ranks that are odd by one function, where the noise of whole steps hides it.

A step whose every function is 20 % noise says little about its sum; a function that takes a tenth of a step more than on all peers
says much. t(f,r): seconds per step of function f on rank r, and of all gpu and all memory functions (a slow device slows them all).

z(f,r) = (t(f,r) - median over peers) / √(max(robust_sd over peers, 0.5 % of the step)² + sd(f,r)² / n)

sd(f,r) over the rank's n steps: a few accidents in one function lengthen its mean, but they vary. p is Student's, with
(n - 1) · (1 + max(…)² / (sd² / n))² degrees of freedom: the peers' scale counts as known (stats/README.md).

Odd: z >= 4 and Benjamini-Hochberg at 1 % over all ranks and functions tested; t - median above the effect floor; and the rank's
steps say the same, though they cannot prove it: z >= 2 (excess.py), excess above the floor and in every third of the steps.
From 16 peers on: the spread of fewer is not known well enough for so many tests.

With 2 to 15 peers there is no such p, so the function must be out of all proportion: t at least four times the most of any peer, and
above it by half of the rank's excess and by twice the floor; and the steps nearly prove it: z >= 2.5, excess twice the floor, slower
in nine of ten steps. This is a rule of thumb, checked on healthy noisy fleets, not a level of significance.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.attribute import TRANSFER, WAITING
from rankscope.diagnose.model.excess import Differences
from rankscope.diagnose.stats.robust import benjamini_hochberg, robust_sd
from rankscope.diagnose.stats.student import chance, combined_freedom
from rankscope.probes.arrays import Bools, Floats, Ints

_PEERS_LEAST = 16
_Z_STEPS = 2.0
_FEW_LEAST, _Z_FEW, _TIMES_FEW, _SLOWER_FEW = 2, 2.5, 4.0, 0.9
_SCALE_FLOOR = 0.005
_CELLS_MOST = 40_000_000
_DEVICES = ("gpu", "memory")


def odd_by_function(fleet: Fleet, roles: Ints, found: Differences, step_s: float) -> Bools:
    """Which ranks (rows) are odd by a function, whether or not they are odd by their steps."""
    hinted = np.isfinite(found.excess_s) & (found.z >= _Z_STEPS) & (found.excess_s >= found.floor_s)
    hinted &= (found.steady_s >= limits.STEADY * found.excess_s) & (found.peer_count >= _FEW_LEAST)
    few = found.peer_count < _PEERS_LEAST
    hinted &= ~few | ((found.z >= _Z_FEW) & (found.excess_s >= 2 * found.floor_s) & (found.slower_share >= _SLOWER_FEW))
    odd = np.zeros(len(hinted), dtype=bool)
    if not hinted.any() or len(fleet.patterns) == 0:
        return odd
    seconds, error = _seconds(fleet)
    freedom = np.maximum(np.isfinite(fleet.steps.seconds).sum(axis=1) - 1.0, 1.0)
    for role in np.unique(roles[hinted]):
        members = np.flatnonzero(roles == role)
        if len(members) <= _PEERS_LEAST:
            odd[members] = _out_of_proportion(
                seconds[members], hinted[members], found.excess_s[members], found.floor_s[members]
            )
            continue
        mine, rows = seconds[members], members[hinted[members]]
        scale = np.maximum(robust_sd(mine, 0), _SCALE_FLOOR * step_s)
        over = mine[hinted[members]] - np.median(mine, axis=0)
        odd[rows] = _odd_rows(over, scale, error[rows], freedom[rows], found.floor_s[rows], mine.size)
    return odd


def _out_of_proportion(seconds: Floats, hinted: Bools, excess_s: Floats, floor_s: Floats) -> Bools:
    """`seconds`: ranks x functions of one small role."""
    odd = np.zeros(len(seconds), dtype=bool)
    for row in np.flatnonzero(hinted):
        most = np.delete(seconds, row, axis=0).max(axis=0)
        least = max(0.5 * float(excess_s[row]), 2 * float(floor_s[row]))
        odd[row] = bool(((seconds[row] >= _TIMES_FEW * most) & (seconds[row] - most >= least)).any())
    return odd


def _odd_rows(over: Floats, scale: Floats, error: Floats, freedom: Floats, floor_s: Floats, tests: int) -> Bools:
    """`over`: ranks x functions, seconds above the median of the role; `error`: the standard errors of that, of `freedom` degrees."""
    z = over / np.hypot(scale, error)
    candidate = (z >= limits.Z_LEAST) & (over >= floor_s[:, None])
    p = np.ones(z.shape)
    if candidate.any():
        p[candidate] = chance(z[candidate], combined_freedom(scale, error, freedom[:, None])[candidate])
    passed = benjamini_hochberg(p.reshape(-1), tests).reshape(p.shape)
    return np.asarray((passed & candidate).any(axis=1))


def _seconds(fleet: Fleet) -> tuple[Floats, Floats]:
    """Own work of the training thread, ranks x (functions, then kinds), seconds per step; and its standard error, 0 where the
    deviation over the steps is not known."""
    table, ranks = fleet.patterns, len(fleet.ranks)
    waiting = np.isin(table.kind.codes, [table.kind.code(kind) for kind in WAITING])
    if (transfer := table.detail.code(TRANSFER)) >= 0:
        waiting &= table.detail.codes != transfer
    rows = np.flatnonzero((table.thread.codes == table.thread.code("training")) & ~waiting)
    names = len(table.name.values)
    keys, column = np.unique(table.kind.codes[rows] * names + table.name.codes[rows], return_inverse=True)
    column = column.reshape(-1)
    kinds, of_kind = np.unique(keys // names, return_inverse=True)
    of_kind = of_kind.reshape(-1)[column]
    room = max(_CELLS_MOST // max(ranks, 1) - len(kinds), 1)
    if len(keys) > room:  # the largest
        total = np.bincount(column, table.per_step_s[rows], len(keys))
        place = np.full(len(keys), -1)
        place[np.argsort(-total)[:room]] = np.arange(room)
        kept = place[column] >= 0
        width = room
        shown, column = rows[kept], place[column[kept]]
    else:
        width, shown = len(keys), rows
    devices = np.isin(kinds, [table.kind.code(kind) for kind in _DEVICES])
    variance = np.zeros(len(table)) if table.sd_s is None else np.nan_to_num(table.sd_s) ** 2

    def matrix(weight: Floats) -> Floats:
        by_function = _matrix(table.rank[shown], column, weight[shown], ranks, width)
        by_kind = _matrix(table.rank[rows], of_kind, weight[rows], ranks, len(kinds))
        return np.hstack([by_function, by_kind[:, devices]])

    steps = np.maximum(np.isfinite(fleet.steps.seconds).sum(axis=1), 1)[:, None]
    return matrix(table.per_step_s), np.sqrt(matrix(variance) / steps)


def _matrix(rank: Ints, column: Ints, weight: Floats, ranks: int, width: int) -> Floats:
    total = np.bincount(rank * width + column, weights=weight, minlength=ranks * width)
    return np.asarray(total, dtype=np.float64).reshape(ranks, width)
