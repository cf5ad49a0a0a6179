"""What patterns are made of besides the timeline: samples of a running thread, and words for the numbers in its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rankscope.observer.thread.functions import NO_STACK, FunctionKey, Holder, StackName
from rankscope.probes.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Samples:
    """Moments at which the thread was found running, in order."""

    time_s: Floats
    stack: npt.NDArray[np.uint64]
    native: npt.NDArray[np.uint64] | None = None  # user instruction pointers, where they are known


@dataclass(frozen=True, slots=True)
class Words:
    """Words for the numbers in a timeline: stacks by id, collective and file scopes by their position."""

    stacks: Mapping[int, StackName]
    collective: Sequence[FunctionKey]  # by scope position
    file: Sequence[FunctionKey]
    file_bytes: Ints
    collective_bytes: Ints
    gil: Mapping[tuple[str, str, int], Holder] = field(default_factory=dict)  # waiting function -> who held the GIL
    native: Mapping[int, str] = field(default_factory=dict)  # instruction pointer -> native function
    device: Sequence[FunctionKey] = ()  # waits for the GPU, copies
    device_bytes: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    targets: Mapping[int, str] = field(default_factory=dict)  # by the position of an absence: what it waits for

    def stack(self, identity: int) -> StackName:
        """NO_STACK where it was lost."""
        return self.stacks.get(identity, NO_STACK)
