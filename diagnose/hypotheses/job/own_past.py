"""A rank without peers is compared with its own past: the same rank in the baseline windows stands in for peers (past/as_peers.py).

Used for ranks that take longer than they did while ranks of other roles do not, if the step grew by at least half of what they did: the
others wait for them. Nobody of their own role is left to compare with (else: majority.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.rank.selection import explain
from rankscope.diagnose.hypotheses.rank.suspects import rank_suspects
from rankscope.diagnose.model.excess import Differences, differences
from rankscope.diagnose.model.replay import shrink
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.past.as_peers import RANKS_MOST, with_past
from rankscope.diagnose.past.baseline import Reference
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.diagnose.text import rank_list
from rankscope.diagnose.verdict.contract import Suspect
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Bools, Ints


def past_suspects(fleet: Fleet, scene: Scene, reference: Reference) -> tuple[list[Suspect], list[Note]]:
    """Suspects among the ranks that grew since the baseline while no rank of their role is left to compare with."""
    rows = _grown_alone(fleet, scene, reference)
    if len(rows) == 0 or len(fleet.ranks) > RANKS_MOST:
        return [], []
    extended, roles = with_past(fleet, scene.roles, reference.fleets, rows)
    first = fleet.steps.count - scene.own.shape[1]
    least_s = 0.0 if fleet.timed else limits.EFFECT_SECONDS

    def compare(counted: Bools) -> Differences:
        return differences(extended.steps.own_s, roles, scene.step_s, first, least_s, False, counted)

    view = replace(
        scene,
        own=extended.steps.own_s[:, first:],
        wait=extended.steps.wait_s[:, first:],
        roles=roles,
        compare=compare,
        slots=None,
    )
    selection = explain(extended, view, rows)
    odd, found = selection.rows, selection.differences
    if len(odd) == 0:
        return [], []
    before = np.array([reference.own[int(number)] for number in fleet.ranks.number[odd]])
    better = scene.own.copy()
    better[odd] = np.fmin(scene.own[odd], before[:, None])
    gained = shrink(scene.own, better, scene.pipelines, scene.busy_s)
    if gained < float(found.floor_s[odd].min()):
        return [], []
    numbers = tuple(sorted(int(number) for number in fleet.ranks.number[odd]))
    text = f"{rank_list(numbers)}: compared with the past ('peers' are earlier windows), because no rank does the same work"
    suspects, notes = rank_suspects(extended, view, selection, gained)
    return suspects, [Note(NoteCode.OWN_PAST, text), *notes]


def _grown_alone(fleet: Fleet, scene: Scene, reference: Reference) -> Ints:
    """Ranks that grew, in roles in which all did, while in other roles nobody did."""
    growth = trimmed_mean(scene.own) - np.array(
        [reference.own.get(int(number), np.nan) for number in fleet.ranks.number]
    )
    known = np.isfinite(growth)
    floor = max(limits.ALONE_SHARE * reference.step_p50, limits.EFFECT_SECONDS, 3 * reference.step_p50_spread)
    grown = known & (growth >= floor)
    same = known & (growth < 0.5 * floor)
    slower = scene.step_s - reference.step_p50
    if not same.any() or not grown.any() or slower < 0.5 * float(growth[grown].max()):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(grown & ~np.isin(scene.roles, scene.roles[same]))
