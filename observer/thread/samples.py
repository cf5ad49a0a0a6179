"""Inputs of patterns besides the timeline: samples of a running thread, words for numbers in events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rankscope.observer.thread.functions import NO_STACK, FunctionKey, Holder, StackName
from rankscope.probes.base.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Samples:
    """Times at which the thread was sampled running, in order."""

    time_s: Floats
    stack: npt.NDArray[np.uint64]
    native: npt.NDArray[np.uint64] | None = None  # user instruction pointers, where known


@dataclass(frozen=True, slots=True)
class Words:
    """Words for the numbers in a timeline: stacks by id, collective and file scopes by their
    position.
    """

    stacks: Mapping[int, StackName]
    collective: Sequence[FunctionKey]  # by scope position
    file: Sequence[FunctionKey]
    file_bytes: Ints
    collective_bytes: Ints
    # waiting function -> holder of the GIL
    gil: Mapping[tuple[str, str, int], Holder] = field(default_factory=dict)
    native: Mapping[int, str] = field(default_factory=dict)  # instruction pointer -> native function
    device: Sequence[FunctionKey] = ()  # waits for the GPU, copies
    device_bytes: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # position of an absence -> what it waits for
    targets: Mapping[int, str] = field(default_factory=dict)

    def stack(self, identity: int) -> StackName:
        """Return the names of the stack with this id; NO_STACK where it was lost."""
        return self.stacks.get(identity, NO_STACK)
