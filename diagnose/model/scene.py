"""The part of the window that is judged, and what was found in it so far: what every hypothesis is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankscope.diagnose.fleet.model import Pipelines, Slots
from rankscope.diagnose.model.excess import Differences
from rankscope.diagnose.stats.onset import Onset
from rankscope.probes.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Scene:
    """The part of the window that is judged: from the onset on, if there is one."""

    own: Floats
    wait: Floats
    roles: Ints
    step_s: float
    differences: Differences
    compare: Callable[[Bools], Differences]  # with these ranks as peers
    onset: Onset | None
    busy_s: Floats  # per step: its length without the transfer
    pipelines: Pipelines | None = None
    slots: Slots | None = None
    least_s: float = 0.0  # what a step must gain, whatever share of it that is
    in_turn: bool | None = False  # roles work one after another; None where that cannot be told
    collectives: float = 1.0  # how many a rank makes in a step
    queue_s: Floats | None = None  # of each rank, per step in the queue for a CPU, outside collectives
