"""Ranks that are slow in a few steps, or were stopped once, as rows.

The rows of ../rows.py remove from each step the mean cost of rare episodes (model/episodes.py) or
of time in state T. The clarity of an episode is the probability that chance gives as many; of time
in state T, which the kernel counts, its share of the step. Where a rank's functions show less than
half of the cost of its episodes, a note reports it instead. Where one function shows most of it,
the same seconds were measured twice: that is strong evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import case_of
from rankscope.diagnose.infer.causes.rank.process import pauses
from rankscope.diagnose.infer.causes.rank.table import charges
from rankscope.diagnose.infer.causes.registry import asked, sentence
from rankscope.diagnose.infer.causes.rows import Clear, Floor, Row, Taken, distance
from rankscope.diagnose.infer.causes.whole_job import Known, Proposal, WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.attribute import Profiles
from rankscope.diagnose.infer.model.episodes import Episodes, at_one_place, find_episodes
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import ordinal, seconds
from rankscope.probes.base.arrays import Ints


@asked
def rare_steps(job: WholeJob, known: Known) -> Iterator[Proposal]:
    """Yield rows and notes on ranks that are slow in a few steps only, not in all."""
    fleet, scene, odd = job.fleet, job.scene, known.odd
    paused = [pause for pause in pauses(fleet) if pause.rows[0] not in set(odd.tolist())]
    known_s = limits.SCALE_FLOOR * scene.step_s
    for one in paused:
        yield Row(one, Taken(one.lost_s), Clear(one.lost_s / known_s), rare=True)
    skip = np.append(odd, np.array([pause.rows[0] for pause in paused], dtype=np.int64))
    yield from _rows(fleet, scene, _episodes(fleet, scene, skip), odd)


def _episodes(fleet: Fleet, scene: Scene, skip: Ints) -> Iterator[Episodes]:
    """Yield episodes of the judged part, then of the whole window, once per rank.

    A rare episode may be older than a small change of level.
    """
    found: dict[int, Episodes] = {}
    parts = [scene.own] if scene.own.shape == fleet.steps.own_s.shape else [scene.own, fleet.steps.own_s]
    floor_s = np.full(len(scene.own), limits.NOTHING * scene.step_s) if fleet.timed else scene.differences.floor_s
    for own in parts:
        place_share = at_one_place(fleet, fleet.steps.count - own.shape[1])
        for each in find_episodes(own, scene.roles, scene.step_s, floor_s, skip, place_share):
            found.setdefault(each.row, each)
    yield from found.values()


def _rows(fleet: Fleet, scene: Scene, episodes: Iterable[Episodes], odd: Ints) -> Iterator[Proposal]:
    """Yield a row for each rank's episodes whose cost its functions show, else a note; `odd`: rows of suspects."""
    floor = Floor(limits.NOTHING if fleet.timed else limits.EFFECT_SHARE)
    profiles: Profiles | None = None
    for each in episodes:
        profiles = profiles or Profiles(fleet)
        made = charges(case_of(fleet, scene, profiles, each.row, np.append(odd, each.row)))
        if not made or made[0].component == "workload" or made[0].lost_s < limits.HOLDS_LEAST * each.lost_s:
            who = f"rank {int(fleet.ranks.number[each.row])}"
            text = f"{who} was slow in {each.count} steps, but none of its functions shows it: not accused"
            yield Note(NoteCode.NO_FUNCTION, text, int(fleet.ranks.number[each.row]))
            continue
        first = made[0]
        twice = first.lost_s >= limits.MOST * each.lost_s
        support = CONVICTED if twice else first.support
        shown = replace(
            first, lost_s=each.lost_s, support=support, evidence=(*_behaviour(each), *first.evidence),
            says=_says(fleet, first, each),
        )  # fmt: skip
        yield Row(shown, Taken(each.lost_s), Clear(distance(each.chance)), floor, rare=each.rare)


def _says(fleet: Fleet, found: Hypothesis, each: Episodes) -> str:
    """Return the sentence on a rank that is slow in some steps only: in which, and for how long each time."""
    known = int(np.isfinite(fleet.steps.own_s[each.row]).sum())
    more = seconds(each.lost_s * known / max(each.count, 1))
    when = (
        f"in every {ordinal(each.period)} step ({each.count} of {known})"
        if each.period
        else f"in {each.count} of {known} steps"
    )
    if (found.component, found.cause) == ("python", "slow-function") and not found.says:
        return f"{when} {{function|its Python code}} takes {more} more than on its peers"
    says = found.says or sentence(found.component, found.cause, found.scope)
    return says if says.startswith("^") else f"{when}, for {more} each time, {says}"


def _behaviour(each: Episodes) -> tuple[Evidence, ...]:
    """Return the evidence of episodes: their number, that of other ranks, the longest step, the period if any."""
    return (
        Evidence("steps", "steps in which it alone was slow", float(each.count), None, "steps"),
        Evidence("steps", "such steps of all other ranks", float(each.of_all - each.count), None, "steps"),
        Evidence("steps", "longest step, own time", each.longest_s, each.usual_s, "s"),
        *((Evidence("steps", "it happens in every", f"{ordinal(each.period)} step", None, ""),) if each.period else ()),
    )
