"""The result of finding a rank's steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rankscope.probes.base.arrays import Floats, Ints

MIN_REPEATS = 3
# a shorter wait for the GPU found it ready: the host may have been ahead or behind
LEAST_STAY_S = 0.0002
NO_EDGES = np.empty(0)
NO_UPDATES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SeenUpdates:
    """Observations of one rank's gradient updates, identified by number.

    `count`: number of updates. `optimised`: updates after which the thread was seen in its
    optimiser; `exchanged`: updates in or after which the ranks exchanged something. `held`: the
    exchange comes from a loop of the job's code that encloses the loop of the updates.
    """

    count: int = 0
    optimised: Ints = field(default_factory=lambda: NO_UPDATES)
    exchanged: Ints = field(default_factory=lambda: NO_UPDATES)
    held: bool = False


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """Boundaries of complete steps: step i is [edge[i], edge[i+1]).

    `period`: markers per step, if found from the repeating sequence, else 0. `turns`: loop turns
    per step, if found from a loop in the job's code, else 0; `unseen`: some turns made no call
    there. `passes`: backward passes per step, if found from updates, else 0. `updates`:
    observations of those. `reason`: why there are no steps.
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
        """Return the step that contains each time, -1 outside."""
        at = np.searchsorted(self.edge_s, time_s, side="right") - 1
        return np.where((at >= 0) & (at < self.count), at, -1).astype(np.int64)


def none(reason: str) -> FoundSteps:
    """Build a result without steps, with the reason why there are none."""
    return FoundSteps(NO_EDGES, reason=reason)
