"""Ranks that are slow now and then, or were stopped once: from rare episodes (model/episodes.py) and time in state T to suspects.

They are no rows of ../rows.py: a chance counts only how often a rank is late, and three times of eight ranks are no 9 nats. A rank whose
functions show less than half of what its episodes cost is not accused: a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import REPORTED, SEEN, suspect_from
from rankscope.diagnose.hypotheses.rank.case import case_of
from rankscope.diagnose.hypotheses.rank.process import pauses
from rankscope.diagnose.hypotheses.rank.table import charges
from rankscope.diagnose.model.attribute import Profiles
from rankscope.diagnose.model.episodes import Episodes, at_one_place, find_episodes
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.verdict.contract import Evidence, Suspect
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Ints


def rare_suspects(fleet: Fleet, scene: Scene, odd: Ints) -> tuple[list[Suspect], list[Note]]:
    """Suspects for what ranks do in a few steps only. `odd`: rows that are suspects for all of their steps."""
    paused = [pause for pause in pauses(fleet) if pause.rows[0] not in set(odd.tolist())]
    # scene.step_s leaves the longest steps out.
    stopped = [suspect_from(fleet, pause, scene.step_s + pause.lost_s, SEEN) for pause in paused]
    skip = np.append(odd, np.array([pause.rows[0] for pause in paused], dtype=np.int64))
    found, notes = _suspects(fleet, scene, _episodes(fleet, scene, skip), odd)
    return [*stopped, *found], notes


def _episodes(fleet: Fleet, scene: Scene, skip: Ints) -> Iterator[Episodes]:
    """Of the part that is judged, and of the whole window: what is rare may be older than a small change of level."""
    found: dict[int, Episodes] = {}
    parts = [scene.own] if scene.own.shape == fleet.steps.own_s.shape else [scene.own, fleet.steps.own_s]
    floor_s = np.full(len(scene.own), limits.NOTHING * scene.step_s) if fleet.timed else scene.differences.floor_s
    for own in parts:
        place_share = at_one_place(fleet, fleet.steps.count - own.shape[1])
        for each in find_episodes(own, scene.roles, scene.step_s, floor_s, skip, place_share):
            found.setdefault(each.row, each)
    yield from found.values()


def _suspects(fleet: Fleet, scene: Scene, episodes: Iterable[Episodes], odd: Ints) -> tuple[list[Suspect], list[Note]]:
    found: list[Suspect] = []
    notes: list[Note] = []
    profiles: Profiles | None = None
    for each in episodes:
        profiles = profiles or Profiles(fleet)
        made = charges(case_of(fleet, scene, profiles, each.row, np.append(odd, each.row)))
        if not made or made[0].component == "workload" or made[0].lost_s < limits.HOLDS_LEAST * each.lost_s:
            who = f"rank {int(fleet.ranks.number[each.row])}"
            text = f"{who} was slow in {each.count} steps, but no function of it shows it: not accused"
            notes.append(Note(NoteCode.NO_FUNCTION, text))
            continue
        first = made[0]
        shown = replace(first, lost_s=each.lost_s, evidence=(*_behaviour(each), *first.evidence))
        score = (1 - each.chance) * REPORTED * first.support
        # scene.step_s leaves the longest steps out.
        found.append(suspect_from(fleet, shown, scene.step_s + each.lost_s, score))
    return found, notes


def _behaviour(each: Episodes) -> tuple[Evidence, ...]:
    return (
        Evidence("steps", "steps in which it alone was slow", float(each.count), None, "steps"),
        Evidence("steps", "such steps of all other ranks", float(each.of_all - each.count), None, "steps"),
        Evidence("steps", "longest step, own time", each.longest_s, each.usual_s, "s"),
        *((Evidence("steps", "it is so in every", f"{each.period}th step", None, ""),) if each.period else ()),
    )
