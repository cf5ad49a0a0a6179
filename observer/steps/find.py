"""Steps: iterations of the job's own training loop, found from outside.

What ends an iteration is sought in this order:
  1. the gradient update: DDP's wait for its last bucket, else the backward pass (updates.py). What happens in every Nth iteration
     only (a logged loss, an evaluation, a checkpoint) makes calls of its own and changes nothing;
  2. the repeating sequence of the collectives, where nothing tells an update (repeats.py).

Ranks that work together make the same iterations. Where some of them make no update at all (actors), and others several between two
rounds of the collectives (the learner), the collectives tell the iterations of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rankscope.observer.steps import repeats, updates
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.steps.markers import Markers


@dataclass(frozen=True, slots=True)
class StepGuide:
    """What the ranks of a job agree on. `period`: markers per step; 0 where that is not known. `passes`: backward passes (with
    their update) per step; 0 where that is not known. `by_collectives`: updates are some ranks' own business."""

    period: int = 0
    passes: int = 0
    by_collectives: bool = False


def find_steps(markers: Markers, guide: StepGuide | None = None) -> FoundSteps:
    """The steps of one rank; none, with the reason, where nothing repeats. `guide`: what the other ranks of the job look like."""
    guide = guide or StepGuide()
    if guide.by_collectives:
        return repeats.find(markers.where(~markers.of(markers.backward)), guide.period)
    found = updates.find(markers, guide.passes)
    if found is not None:
        return found
    return repeats.find(markers, guide.period)


def common_guide(found: Sequence[FoundSteps]) -> StepGuide:
    """What a step is made of, given what each rank looks like by itself.

    Ranks of a synchronous job make the same steps. Of periods the most common counts, then the least: one that looks different has
    gaps that happen to alternate (throttled reads do). Passes per step are what all ranks show together: one alone may have been
    seen too seldom in its optimiser, or by chance after every other update.
    """
    periods = Counter(each.period for each in found if each.period)
    made = max((each.count * each.passes for each in found), default=0)
    return StepGuide(
        period=min(periods, key=lambda period: (-periods[period], period)) if periods else 0,
        passes=updates.common_passes([each.optimised for each in found], made) if made else 0,
        by_collectives=_only_some_update(found),
    )


def _only_some_update(found: Sequence[FoundSteps]) -> bool:
    """Whether ranks that are told by their updates make more steps than those told by collectives: twice as many, and not by chance."""
    update, others = (
        [each.count for each in found if each.count and bool(each.passes) is told] for told in (True, False)
    )
    return bool(update and others) and median(update) > updates.AS_OFTEN * median(others)
