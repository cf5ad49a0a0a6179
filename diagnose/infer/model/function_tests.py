"""Strength of single functions as evidence that a rank is slow, where the noise of steps hides it.

A step whose functions each have 20 % noise says little about its sum; a function that takes a tenth
of a step more than on all peers says much. t(f,r): seconds per step of function f on rank r, and of
all gpu and all memory functions (a slow device slows them all).

z(f,r)        = (t(f,r) - usual) / √(max(spread, 0.5 % of the step)² + sd(f,r)² / n)
usual, spread = from 16 peers on, their median and robust_sd; with fewer the largest of them, and a
                tenth of that, since the spread of few is unknown
sd(f,r)       = over the rank's n steps: a few accidents in one function lengthen its mean, but
                vary. If unknown and peers are few: the error of the whole step, all of whose noise
                may be of this function
strength(r)   = max over f of -ln P(T >= z(f,r)) - ln F, in nats, F functions examined

Student's t with (n - 1) · (1 + max(…)² / (sd² / n))² degrees of freedom: the peers' scale counts as
known (stats/README.md). 0 where t - usual is below the effect floor, or below half of the rank's
excess. With fewer than 16 peers the user's function with most of the excess, by its stack, is one
more; F is then the number of rows of the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.attribute import Located
from rankscope.diagnose.infer.model.excess import Differences
from rankscope.diagnose.infer.model.waits import waits
from rankscope.diagnose.stats.integers import distinct
from rankscope.diagnose.stats.robust import robust_sd
from rankscope.diagnose.stats.student import chance, combined_freedom, nats
from rankscope.probes.base.arrays import Bools, Floats, Ints

_DEVICES = ("gpu", "memory")


@dataclass(slots=True)
class FunctionLevels:
    """Seconds per step of every function on every rank of a fleet, read on first use."""

    fleet: Fleet
    roles: Ints
    step_s: float
    _table: tuple[Floats, Floats] | None = None
    _usual: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)  # by role, of large roles

    def strength(self, row: int, found: Differences, counted: Bools) -> float:
        """Evidence of a rank's (row) clearest single function that it is slow, in nats.

        Compared with the peers that are `counted`; 0 without any.
        """
        peers = np.flatnonzero(counted & (self.roles == self.roles[row]))
        peers = peers[peers != row]
        if not len(peers) or not len(self.fleet.patterns):
            return 0.0
        if self._table is None:
            self._table = _seconds(self.fleet)
        seconds, error = self._table
        usual, spread = self._level(peers, int(self.roles[row]))
        over = seconds[row] - usual
        scale, error = np.maximum(spread, limits.FEW * limits.EFFECT_SHARE * self.step_s), error[row]
        if self.fleet.patterns.sd_s is None and len(peers) < limits.FLEET:
            error = np.full(len(error), float(found.error_s[row]))
        shown = over >= self._least_s(row, found)
        if not shown.any():
            return 0.0
        freedom = combined_freedom(scale[shown], error[shown], np.full(int(shown.sum()), float(self._steps(row))))
        p = chance(over[shown] / np.hypot(scale[shown], error[shown]), freedom)
        return max(float(nats(p).max()) - float(np.log(seconds.shape[1])), 0.0)

    def strength_of(self, located: Located, row: int, found: Differences) -> float:
        """Evidence in nats that a user's function is slow with all that it calls, for a rank with few peers.

        Its time may be spread over several leaves. `located`: the function; `row`: the rank.
        """
        error_s = np.array([found.error_s[row]])
        if located.spread or located.excess_s < self._least_s(row, found):
            return 0.0
        scale_s = np.array([max(limits.FEW * located.peers_s, limits.FEW * limits.EFFECT_SHARE * self.step_s)])
        freedom = combined_freedom(scale_s, error_s, np.array([float(self._steps(row))]))
        p = chance(located.excess_s / np.hypot(scale_s, error_s), freedom)
        return max(float(nats(p)[0]) - float(np.log(max(len(self.fleet.patterns), 1))), 0.0)

    def _least_s(self, row: int, found: Differences) -> float:
        """Least excess in seconds per step that a function must show: the floor, or half of the rank's if more."""
        return max(float(found.floor_s[row]), limits.HOLDS_LEAST * float(found.excess_s[row]))

    def _steps(self, row: int) -> int:
        """Number of the rank's steps less 1, at least 1: degrees of freedom."""
        return max(int(np.isfinite(self.fleet.steps.seconds[row]).sum()) - 1, 1)

    def _level(self, peers: Ints, role: int) -> tuple[Floats, Floats]:
        """Return (median, robust deviation) over these peers of the seconds per step in each function.

        With fewer than limits.FLEET peers: (maximum, 10 % of it). Otherwise cached by role.
        """
        assert self._table is not None
        seconds = self._table[0]
        if len(peers) < limits.FLEET:
            most = seconds[peers].max(axis=0)
            return most, limits.FEW * most
        if role not in self._usual:
            self._usual[role] = np.median(seconds[peers], axis=0), robust_sd(seconds[peers], 0)
        return self._usual[role]


def _seconds(fleet: Fleet) -> tuple[Floats, Floats]:
    """(seconds, standard error) of the training thread's own work, ranks x (functions, then kinds).

    Seconds per step; the error is 0 where the deviation over the steps is unknown.
    """
    table, ranks = fleet.patterns, len(fleet.ranks)
    rows = np.flatnonzero((table.thread.codes == table.thread.code("training")) & ~waits(table))
    names = len(table.name.values)
    keys, column = distinct(table.kind.codes[rows] * names + table.name.codes[rows])
    kinds, of_kind = np.unique(keys // names, return_inverse=True)
    of_kind = of_kind.reshape(-1)[column]
    room = max(budgets.CELLS_MOST // max(ranks, 1) - len(kinds), 1)
    if len(keys) > room:  # only the largest
        total = np.bincount(column, table.per_step_s[rows], len(keys))
        place = np.full(len(keys), -1)
        place[np.argsort(-total)[:room]] = np.arange(room)
        kept = place[column] >= 0
        width = room
        shown, column = rows[kept], place[column[kept]]
    else:
        width, shown = len(keys), rows
    devices = np.isin(kinds, [table.kind.code(kind) for kind in _DEVICES])
    of_devices, device = rows[devices[of_kind]], (np.cumsum(devices) - 1)[of_kind[devices[of_kind]]]

    def matrix(weight: Floats) -> Floats:
        """Sum a weight of the pattern rows by rank, for each function and then for each kind of device work."""
        by_function = _matrix(table.rank[shown], column, weight[shown], ranks, width)
        by_kind = _matrix(table.rank[of_devices], device, weight[of_devices], ranks, int(devices.sum()))
        return np.hstack([by_function, by_kind])

    seconds = matrix(table.per_step_s)
    if table.sd_s is None:
        return seconds, np.broadcast_to(0.0, seconds.shape)
    return seconds, np.sqrt(matrix(np.nan_to_num(table.sd_s) ** 2) / fleet.steps.of_each[:, None])


def _matrix(rank: Ints, column: Ints, weight: Floats, ranks: int, width: int) -> Floats:
    """Sum `weight` into a matrix of ranks x `width`; `rank`, `column`: place of each weight."""
    total = np.bincount(rank * width + column, weights=weight, minlength=ranks * width)
    return np.asarray(total, dtype=np.float64).reshape(ranks, width)
