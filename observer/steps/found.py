"""What was found of a rank's steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rankscope.probes.arrays import Floats, Ints

MIN_REPEATS = 3
LEAST_STAY_S = 0.0002  # a wait for the GPU that is shorter found it ready: the host may have been ahead or behind
NO_EDGES = np.empty(0)
NO_UPDATES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SeenUpdates:
    """What was seen of the gradient updates of one rank. `count`: how many there are. Of these, by their numbers: `optimised`: after which
    the thread was seen in its optimiser; `exchanged`: in or after which the ranks exchanged something. `held`: that comes from a loop
    of the job's code that holds the loop of the updates.
    """

    count: int = 0
    optimised: Ints = field(default_factory=lambda: NO_UPDATES)
    exchanged: Ints = field(default_factory=lambda: NO_UPDATES)
    held: bool = False


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """Boundaries of complete steps: step i is [edge[i], edge[i+1]).

    `period`: so many markers make a step, where the repeating sequence told it, else 0. `turns`: so many turns of a loop in the job's
    own code do, where that told it, else 0; `unseen`: some turns made no call there. `passes`: so many backward passes do, where
    the updates told it, else 0. `updates`: what was seen of those. `reason`: why there are none.
    """

    edge_s: Floats
    period: int = 0
    passes: int = 0
    turns: int = 0
    unseen: bool = False
    reason: str = ""
    updates: SeenUpdates = field(default_factory=SeenUpdates)

    @property
    def count(self) -> int:
        return max(len(self.edge_s) - 1, 0)

    def index(self, time_s: Floats) -> Ints:
        """The step that each time lies in, -1 outside."""
        at = np.searchsorted(self.edge_s, time_s, side="right") - 1
        return np.where((at >= 0) & (at < self.count), at, -1).astype(np.int64)


def none(reason: str) -> FoundSteps:
    """No steps."""
    return FoundSteps(NO_EDGES, reason=reason)
