"""Activities of one thread, grouped by function before they are measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from rankscope.probes.base.arrays import Floats, Ints


@dataclass(slots=True)
class Activities:
    """The activities of one function: seconds, step of the begin (-1 outside), bytes moved, samples
    by native function, and those in the kernel by what it did for them.
    """

    durations: list[Floats] = field(default_factory=list)
    steps: list[Ints] = field(default_factory=list)
    bytes: int = 0
    native: Counter[str] = field(default_factory=Counter)
    kernel: Counter[str] = field(default_factory=Counter)
    _each: list[bool] = field(default_factory=list)  # whether they are summed one by one

    def __post_init__(self) -> None:
        self._each += [False] * (len(self.durations) - len(self._each))

    @property
    def total_s(self) -> float:
        """Total seconds."""
        total = 0.0
        for durations, each in zip(self.durations, self._each, strict=True):
            total = (
                float(np.add.accumulate(np.append(total, durations))[-1]) if each else total + float(durations.sum())
            )
        return total

    def add(self, durations: Floats, steps: Ints) -> None:
        """Add activities: the seconds of each, and the step in which it began (-1 outside)."""
        self.durations.append(durations)
        self.steps.append(steps)
        self._each.append(False)

    def add_each(self, durations: Floats, steps: Ints) -> None:
        """Add activities whose seconds `total_s` sums one by one, in order."""
        self.add(durations, steps)
        self._each[-1] = True

    def take(self, other: Activities) -> None:
        """Add all that another instance holds, such as the same function's with another stack."""
        self.durations += other.durations
        self.steps += other.steps
        self._each += other._each
        self.bytes += other.bytes
        self.native += other.native
        self.kernel += other.kernel

    def per_step(self, count: int) -> Floats:
        """Return the seconds of the activities that began in each of `count` steps."""
        steps, durations = np.concatenate(self.steps), np.concatenate(self.durations)
        inside = steps >= 0
        sums: Floats = np.bincount(steps[inside], durations[inside], minlength=count)[:count].astype(np.float64)
        return sums
