"""The judged part of the window and what was found in it so far: the input of every hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankscope.diagnose.infer.fleet.model import Pipelines, Slots
from rankscope.diagnose.infer.model.excess import Differences
from rankscope.diagnose.stats.onset import Onset
from rankscope.diagnose.stats.robust import mean_of_known
from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Scene:
    """The judged part of the window: from the onset on, if there is one.

    `own`, `wait`: ranks x steps, seconds; `roles`: a number per rank; `differences`: the comparison
        so far.
    """

    own: Floats
    wait: Floats
    roles: Ints
    step_s: float
    differences: Differences
    compare: Callable[[Bools], Differences]  # with these ranks as peers (mask)
    onset: Onset | None
    busy_s: Floats  # of each step: its length without the transfer
    pipelines: Pipelines | None = None
    slots: Slots | None = None
    least_s: float = 0.0  # least gain that counts, in seconds per step
    in_turn: bool | None = False  # roles work one after another; None: unknown
    collectives: float = 1.0  # number of collectives of a rank in a step
    queue_s: Floats | None = None  # of each rank: seconds per step in the queue for a CPU, outside collectives


def mean_step_s(seconds: Floats, scene: Scene) -> float:
    """Mean length of the judged steps: over steps, then over the ranks that have any; costs are shares of it.

    `seconds`: ranks x steps, length of each step of the window; NaN: unknown.
    """
    means = mean_of_known(seconds[:, seconds.shape[1] - scene.own.shape[1] :])
    return float(means[means > 0].mean()) if (means > 0).any() else scene.step_s
