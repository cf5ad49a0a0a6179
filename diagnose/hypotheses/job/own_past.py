"""A rank without peers is compared with its own past: the same rank in the baseline windows stands in for peers.

Time as space: the fleet is extended by rows for the rank as it was in each baseline window, and these rows and the rank have a role
of their own. All rules for peers then hold as they are (model/excess.py, model/attribute.py, ../rank). Used for ranks that take longer
than they did while ranks of other roles do not, if the step grew by at least half of what they did: the others wait for them. Nobody
of their own role is left to compare with (else: majority.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.labels import Holders, Labels
from rankscope.diagnose.fleet.model import Fleet, Patterns, Ranks, Steps
from rankscope.diagnose.fleet.stacks import Stacks
from rankscope.diagnose.hypotheses.rank.selection import explain
from rankscope.diagnose.hypotheses.rank.suspects import rank_suspects
from rankscope.diagnose.model.excess import Differences, differences
from rankscope.diagnose.model.replay import shrink
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.past.baseline import Reference
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.diagnose.text import rank_list
from rankscope.diagnose.verdict.contract import Suspect
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Bools, Floats, Ints

_RANKS_MOST = 4096
_Table = TypeVar("_Table", Ranks, Patterns)


def past_suspects(fleet: Fleet, scene: Scene, reference: Reference) -> tuple[list[Suspect], list[Note]]:
    """Suspects among the ranks that grew since the baseline while no rank of their role is left to compare with."""
    rows = _grown_alone(fleet, scene, reference)
    if len(rows) == 0 or len(fleet.ranks) > _RANKS_MOST:
        return [], []
    extended, roles = _extended(fleet, scene.roles, reference.fleets, rows)
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
    floor = max(limits.BASELINE_SHARE * reference.step_p50, limits.EFFECT_SECONDS, 3 * reference.step_p50_spread)
    grown = known & (growth >= floor)
    same = known & (growth < 0.5 * floor)
    slower = scene.step_s - reference.step_p50
    if not same.any() or not grown.any() or slower < 0.5 * float(growth[grown].max()):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(grown & ~np.isin(scene.roles, scene.roles[same]))


def _extended(fleet: Fleet, roles: Ints, past: Sequence[Fleet], rows: Ints) -> tuple[Fleet, Ints]:
    ranks, patterns, steps = fleet.ranks, fleet.patterns, fleet.steps
    codes = [roles]
    following = int(roles.max()) + 1
    own_role = {int(fleet.ranks.number[row]): following + index for index, row in enumerate(rows)}
    codes[0] = np.array(
        [own_role.get(int(number), int(code)) for number, code in zip(ranks.number, roles, strict=True)], np.int64
    )
    for earlier in past:
        chosen = np.flatnonzero(np.isin(earlier.ranks.number, fleet.ranks.number[rows]))
        if len(chosen) == 0:
            continue
        moved = np.full(len(earlier.ranks), -1, dtype=np.int64)
        moved[chosen] = len(ranks) + np.arange(len(chosen))
        kept = np.flatnonzero(moved[earlier.patterns.rank] >= 0)
        renamed = replace(earlier.patterns, rank=moved[earlier.patterns.rank])
        patterns = _joined(patterns, renamed, kept)
        ranks = _joined(ranks, earlier.ranks, chosen)
        steps = _joined_steps(steps, earlier.steps, chosen)
        codes.append(np.array([own_role[int(number)] for number in earlier.ranks.number[chosen]], dtype=np.int64))
    return replace(fleet, ranks=ranks, patterns=patterns, steps=steps, slots=None), np.concatenate(codes)


def _joined(now: _Table, then: _Table, rows: Ints) -> _Table:
    """The rows of `now`, and these rows of `then`, column by column."""
    columns: dict[str, Any] = {}
    for field in fields(now):
        mine: Any = getattr(now, field.name)
        theirs: Any = getattr(then, field.name)
        if mine is None or theirs is None:
            columns[field.name] = None
        elif isinstance(mine, Labels):
            columns[field.name] = _labels(mine, theirs, rows)
        elif isinstance(mine, Stacks | Holders):
            columns[field.name] = mine.followed_by(theirs, rows)
        elif isinstance(mine, tuple):
            columns[field.name] = (*mine, *(theirs[row] for row in rows.tolist())) if mine and theirs else ()
        else:
            columns[field.name] = np.concatenate([mine, theirs[rows]])
    return replace(now, **columns)


def _labels(now: Labels, then: Labels, rows: Ints) -> Labels:
    place = {text: code for code, text in enumerate(now.values)}
    new = [place.setdefault(text, len(place)) for text in then.values]
    codes = np.array(new, dtype=np.int64)[then.codes[rows]] if new else np.empty(0, dtype=np.int64)
    return Labels(np.concatenate([now.codes, codes]), tuple(place))


def _joined_steps(now: Steps, then: Steps, rows: Ints) -> Steps:
    def both(mine: Floats, theirs: Floats) -> Floats:
        added = np.full((len(rows), mine.shape[1]), np.nan)
        if theirs.shape[1]:  # the past has no steps in common with now: any of them will do, in turn
            added[:] = theirs[rows][:, np.arange(mine.shape[1]) % theirs.shape[1]]
        return np.vstack([mine, added])

    names = ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")
    return Steps(now.start_s, *(both(getattr(now, name), getattr(then, name)) for name in names), number=None)
