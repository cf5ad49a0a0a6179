"""Ranks that are slow now and then: from rare episodes (model/episodes.py) to suspects.

A rank whose functions show less than half of what its episodes cost is not accused: a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import suspect_from
from rankscope.diagnose.hypotheses.rank.case import case_of
from rankscope.diagnose.hypotheses.rank.table import charges
from rankscope.diagnose.model.attribute import Profiles
from rankscope.diagnose.model.episodes import Episodes
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.verdict.contract import Evidence, Suspect
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Ints

_SURE = 0.9  # of what an accident of chance leaves


def episode_suspects(
    fleet: Fleet, scene: Scene, episodes: Iterable[Episodes], odd: Ints
) -> tuple[list[Suspect], list[Note]]:
    """Suspects for ranks that are slow now and then. `odd`: rows that are suspects for all of their steps."""
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
        score = (1 - each.chance) * _SURE * first.support
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
