"""Choose reference ranks with the help of earlier windows.

growth(r) = own(r) now - own(r) in the baseline - q(r)
            own: trimmed mean over steps; baseline: median over its windows;
            q: run-queue wait that the rank causes by wanting more CPU (demand.py)

A rank grew if its growth exceeds max(10 % of the baseline step, 0.5 ms, 3.5 times the baseline's
spread), and is unchanged below half of that. If some of a role are unchanged, those that grew are
no references, however many: most ranks may be slow. If all of a role grew while other roles are
unchanged, and the step grew by at least half as much, so that the others wait for them, each is
compared with itself (as_peers.py). If all ranks grew, all are slow
(infer/causes/job/slow_everywhere.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.excess import Differences, differences
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.past.as_peers import RANKS_MOST, with_past
from rankscope.diagnose.infer.past.baseline import Reference
from rankscope.diagnose.infer.past.demand import queue_of_demand_s
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.diagnose.text import rank_list
from rankscope.probes.base.arrays import Bools, Floats, Ints

_NOBODY: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Compared:
    """The fleet and scene for comparing ranks with peers or with their own past.

    The first `count` rows are today's ranks, the rest earlier ones. `grown`: rows that are no
    references; `alone`: those of them that are compared with themselves.
    """

    fleet: Fleet
    scene: Scene
    count: int
    grown: Ints
    alone: Ints

    def about(self, rows: Ints) -> list[Note]:
        """Notes on the references of these suspects (rows), if not just today's peers."""
        found = []
        if len(own := np.intersect1d(rows, self.alone)):
            text = f"{self._who(own)}: compared with the past ('peers' are earlier windows), because no rank does the same work"
            found.append(Note(NoteCode.OWN_PAST, text))
        if len(others := np.setdiff1d(np.intersect1d(rows, self.grown), self.alone)):
            text = f"{self._who(others)}: slower than in the baseline, the other ranks are not; compared with these"
            found.append(Note(NoteCode.MAJORITY, text))
        return found

    def _who(self, rows: Ints) -> str:
        """Name these ranks (rows) by number, in words."""
        return rank_list(tuple(sorted(int(number) for number in self.fleet.ranks.number[rows])))


def compared(fleet: Fleet, scene: Scene, reference: Reference | None) -> Compared:
    """Choose how to compare: with peers, with unchanged peers only, or with the rank's own past."""
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
    """Growth of each rank's own time over the baseline, seconds per step; NaN if unknown.

    Without run-queue wait that the rank causes by more CPU demand. `own`: ranks x steps.
    """
    before = [reference.own.get(int(number), np.nan) for number in fleet.ranks.number]
    queue_s = queue_of_demand_s(fleet, reference.demand)
    return np.asarray(trimmed_mean(own) - np.array(before) - queue_s, dtype=np.float64)


def _extended(fleet: Fleet, scene: Scene, past: Sequence[Fleet], alone: Ints) -> tuple[Fleet, Scene]:
    """Extend fleet and scene by earlier windows of the ranks (rows) in `alone`, as peers of these.

    `past`: earlier fleets.
    """
    extended, roles = with_past(fleet, scene.roles, past, alone)
    first = fleet.steps.count - scene.own.shape[1]
    least_s = 0.0 if fleet.timed else limits.EFFECT_SECONDS

    def compare(counted: Bools) -> Differences:
        """Compare all rows with those in the mask as peers."""
        return differences(extended.steps.own_s, roles, scene.step_s, first, least_s, False, counted)

    own, wait = extended.steps.own_s[:, first:], extended.steps.wait_s[:, first:]
    return extended, replace(scene, own=own, wait=wait, roles=roles, compare=compare, slots=None)
