"""Who is compared with whom where earlier windows are known: time decides who may serve as a reference.

growth(r) = own(r) now - own(r) in the baseline - q(r)       trimmed means over steps, median over the baseline windows; q: the queue
                                                             for a CPU that the rank makes for itself by wanting more of it (demand.py)

A rank grew if its growth exceeds max(10 % of the baseline step, 0.5 ms, 3 times the spread of the baseline), and is as it was below half
of that. Where some of a role are as they were, those that grew are no reference for anybody, however many they are: most ranks may be
slow. Where all of a role grew while ranks of other roles are as they were, and the step grew by half as much at least, so that the
others wait for them, each is compared with itself (as_peers.py). Where all grew it is everybody (hypotheses/job/slow_everywhere.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.excess import Differences, differences
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.past.as_peers import RANKS_MOST, with_past
from rankscope.diagnose.past.baseline import Reference
from rankscope.diagnose.past.demand import queue_of_demand_s
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.diagnose.text import rank_list
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Bools, Floats, Ints

_NOBODY: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Compared:
    """What ranks are compared in. `count`: its first rows are the ranks of today, those behind them are ranks as they were.

    `grown`: rows that are no reference from the start; `alone`: of these, who is compared with itself, and is waited for.
    """

    fleet: Fleet
    scene: Scene
    count: int
    grown: Ints
    alone: Ints

    def about(self, rows: Ints) -> list[Note]:
        """With what suspects (rows) are compared, where it is not with their peers of today alone."""
        found = []
        if len(own := np.intersect1d(rows, self.alone)):
            text = f"{self._who(own)}: compared with the past ('peers' are earlier windows), because no rank does the same work"
            found.append(Note(NoteCode.OWN_PAST, text))
        if len(others := np.setdiff1d(np.intersect1d(rows, self.grown), self.alone)):
            text = f"{self._who(others)}: slower than in the baseline, the other ranks are not; compared with these"
            found.append(Note(NoteCode.MAJORITY, text))
        return found

    def _who(self, rows: Ints) -> str:
        return rank_list(tuple(sorted(int(number) for number in self.fleet.ranks.number[rows])))


def compared(fleet: Fleet, scene: Scene, reference: Reference | None) -> Compared:
    """The ranks beside each other, and where earlier windows say so beside themselves."""
    count = len(fleet.ranks)
    if reference is None:
        return Compared(fleet, scene, count, _NOBODY, _NOBODY)
    growth = growth_s(fleet, scene.own, reference)
    grown, same = growth >= reference.least_growth_s, growth < 0.5 * reference.least_growth_s
    beside_same = np.isin(scene.roles, scene.roles[same])
    among, alone = np.flatnonzero(grown & beside_same), np.flatnonzero(grown & ~beside_same)
    slower = scene.step_s - reference.step_p50
    if (
        not (len(alone) and same.any())
        or count > RANKS_MOST
        or slower < limits.HOLDS_LEAST * float(growth[alone].max())
    ):
        return Compared(fleet, scene, count, among, _NOBODY)
    extended, view = _extended(fleet, scene, reference.fleets, alone)
    return Compared(extended, view, count, np.union1d(among, alone), alone)


def growth_s(fleet: Fleet, own: Floats, reference: Reference) -> Floats:
    """By how much each rank takes longer than in the baseline, seconds per step; NaN where nobody knows."""
    before = [reference.own.get(int(number), np.nan) for number in fleet.ranks.number]
    queue_s = queue_of_demand_s(fleet, reference.demand)
    return np.asarray(trimmed_mean(own) - np.array(before) - queue_s, dtype=np.float64)


def _extended(fleet: Fleet, scene: Scene, past: Sequence[Fleet], alone: Ints) -> tuple[Fleet, Scene]:
    extended, roles = with_past(fleet, scene.roles, past, alone)
    first = fleet.steps.count - scene.own.shape[1]
    least_s = 0.0 if fleet.timed else limits.EFFECT_SECONDS

    def compare(counted: Bools) -> Differences:
        return differences(extended.steps.own_s, roles, scene.step_s, first, least_s, False, counted)

    own, wait = extended.steps.own_s[:, first:], extended.steps.wait_s[:, first:]
    return extended, replace(scene, own=own, wait=wait, roles=roles, compare=compare, slots=None)
