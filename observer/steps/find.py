"""Find steps: iterations of the job's own training loop, from outside.

The end of an iteration is searched in this order:

1. the gradient update: DDP's wait for its last bucket, else the backward pass (updates.py). What happens in every Nth iteration
   only (a logged loss, an evaluation, a checkpoint) makes calls of its own and changes nothing;
2. the turns of the loop from which the collectives are called (loops.py), or where that is not known their repeating sequence,
   where no update is seen (repeats.py). A job of one rank makes none: its dispatches of compiled functions take their place (JAX).

Ranks that work together make the same iterations. Where some of them make no update at all
(actors), and others several between two rounds of the collectives (the learner), the collectives
define the iterations of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rankscope.observer.steps import passes, repeats, updates
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.steps.markers import Markers


@dataclass(frozen=True, slots=True)
class StepGuide:
    """Step parameters that the ranks of a job agree on.

    `period`: markers per step; 0 unknown. `turns`: turns of their loop per step; `unseen`: some
    turns make no call of their own.
    `passes`: backward passes (with their update) per step; 0 unknown. `by_collectives`: ignore
    updates, as only some ranks make them. `one_rank`: the job has no other rank.
    """

    period: int = 0
    turns: int = 0
    unseen: bool = False
    passes: int = 0
    by_collectives: bool = False
    one_rank: bool = False


def find_steps(markers: Markers, guide: StepGuide | None = None) -> FoundSteps:
    """Find the steps of one rank; none, with the reason, where nothing repeats. `guide`: from the
    job's other ranks.
    """
    guide = guide or StepGuide()
    if guide.by_collectives:
        return repeats.find(markers.where(~markers.of(markers.backward)), guide.period, guide.turns, guide.unseen)
    found = updates.find(markers, guide.passes)
    if found is not None:
        return found
    return repeats.find(markers, guide.period, guide.turns, guide.unseen)


def common_guide(found: Sequence[FoundSteps]) -> StepGuide:
    """Combine the steps that each rank shows alone into parameters for all.

    Ranks of a synchronous job make the same steps. Of periods the most common counts, then the
    least: a deviating one has gaps that happen to alternate (throttled reads do). Passes per step
    come from all ranks together: one alone may have been sampled too seldom in its optimiser, or by
    chance after every other update.
    """
    return StepGuide(
        period=_most_common([each.period for each in found]),
        turns=_most_common([each.turns for each in found]),
        unseen=any(each.unseen for each in found),
        passes=passes.common([each.updates for each in found]),
        by_collectives=_only_some_update(found),
    )


def _most_common(found: Sequence[int]) -> int:
    """Return the most common nonzero number, of equally common ones the least; 0 if there is none."""
    count = Counter(each for each in found if each)
    return min(count, key=lambda one: (-count[one], one), default=0)


def _only_some_update(found: Sequence[FoundSteps]) -> bool:
    """Tell whether ranks with steps from updates make over `AS_OFTEN` times as many as ranks with other steps.

    Compares medians; False unless there are ranks of both kinds.
    """
    update, others = (
        [each.count for each in found if each.count and bool(each.passes) is told] for told in (True, False)
    )
    return bool(update and others) and median(update) > updates.AS_OFTEN * median(others)
