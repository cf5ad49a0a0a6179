"""Most of the ranks are bad: space turns the test round, so time decides.

growth(r) = own(r) now - own(r) in the baseline       trimmed means over steps, median over the baseline windows

A rank grew if its growth exceeds max(10 % of the baseline step, 3 ms, 3 times the spread of the baseline). If some grew and others
did not (both at least a tenth), those that grew are compared with those that did not: they are the suspects, however many they are.
If all grew it is everybody: slow_everywhere.py.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.rank.selection import explain
from rankscope.diagnose.hypotheses.rank.suspects import rank_suspects
from rankscope.diagnose.model.replay import gain
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.past.baseline import Reference
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.diagnose.text import rank_list
from rankscope.diagnose.verdict.contract import Suspect
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Ints

_PART = 0.1


def grown_ranks(fleet: Fleet, scene: Scene, reference: Reference) -> Ints:
    """Rows of the ranks that take longer than they did, if others of their role do not; else none."""
    now = trimmed_mean(scene.own)
    before = np.array([reference.own.get(int(number), np.nan) for number in fleet.ranks.number])
    growth = now - before
    known = np.isfinite(growth)
    floor = max(limits.ALONE_SHARE * reference.step_p50, limits.EFFECT_SECONDS, 3 * reference.step_p50_spread)
    grown = known & (growth >= floor)
    same = known & (growth < 0.5 * floor)
    for role in np.unique(scene.roles[grown]):
        if not same[scene.roles == role].any():  # nobody to compare with
            grown &= scene.roles != role
    clear = grown.sum() >= max(_PART * known.sum(), 1) and same.sum() >= max(_PART * known.sum(), 1)
    rows: Ints = np.flatnonzero(grown)
    return rows if clear else np.empty(0, dtype=np.int64)


def majority_suspects(fleet: Fleet, scene: Scene, reference: Reference) -> tuple[list[Suspect], list[Note]]:
    """Suspects among the ranks that are slower than in the baseline, compared with those that are not."""
    rows = grown_ranks(fleet, scene, reference)
    if len(rows) == 0:
        return [], []
    selection = explain(fleet, scene, rows)
    rows = selection.rows
    gained = gain(scene.own, scene.roles, rows, scene.pipelines, scene.busy_s)
    if not len(rows) or gained < float(selection.differences.floor_s[rows].min()):
        return [], []
    numbers = tuple(sorted(int(number) for number in fleet.ranks.number[rows]))
    text = f"{rank_list(numbers)}: slower than in the baseline, the other ranks are not; compared with these"
    suspects, notes = rank_suspects(fleet, scene, selection, gained)
    return suspects, [Note(NoteCode.MAJORITY, text), *notes]
