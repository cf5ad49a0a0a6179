"""The probes' data on one process in one window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from rankscope.observer.gpu.launched import LaunchSite
from rankscope.observer.gpu.rows import GpuView
from rankscope.observer.thread.functions import StackName
from rankscope.probes.base.arrays import Floats
from rankscope.probes.base.grouped import grouped
from rankscope.probes.bpf.ring import Events

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class OpenAbsence:
    """A thread that is off the CPU when the window ends."""

    tid: int
    since_ns: int
    wake_ns: int
    state: int
    syscall: int
    argument: int
    stack: int


@dataclass(frozen=True, slots=True)
class RawProcess:
    """All data of one process in one window. Times in ns of CLOCK_MONOTONIC; events of this process
    only.
    """

    pid: int
    start_ns: int
    window_s: float
    events: Events
    open_absences: Mapping[int, OpenAbsence]
    open_calls: Sequence[tuple[int, int, int]]  # tid, row, since ns
    python_tids: frozenset[int]
    stacks: Mapping[int, StackName]
    devices: Mapping[int, str]  # kernel device number -> words
    throttled_s: float
    hz: float
    # stacks of the fallback sampler, with how often each was seen running
    untimed: Sequence[tuple[int, int]] = ()
    thread_states: Mapping[int, int] = field(default_factory=dict)  # PyThreadState -> tid
    thread_names: Mapping[int, str] = field(default_factory=dict)
    native: Mapping[int, str] = field(default_factory=dict)  # user instruction pointer -> native function
    # user instruction pointer -> name of the mapped file that it lies in
    libraries: Mapping[int, str] = field(default_factory=dict)
    launches: Sequence[LaunchSite] = ()
    gpu: GpuView | None = None  # GPU data of this process; None where none is seen
    # (tid, system call, argument) of long waits -> what they wait for
    targets: Mapping[tuple[int, int, int], str] = field(default_factory=dict)
    alive_tids: frozenset[int] = frozenset()  # threads that existed when the window ended
    members: tuple[int, ...] = ()  # threads that take turns, merged here (one_line.py)
    collective_tail_s: float = 0.0  # how long its GPUs have been in collectives alone at the end
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def since_start_s(self, ns: Any) -> Floats:
        """Convert times of CLOCK_MONOTONIC to seconds since the window's start."""
        return (np.asarray(ns).astype(np.float64) - self.start_ns) / 1e9

    def of_thread(self, tid: int) -> Events:
        """Return the events of one thread."""
        threads = self.once("threads", lambda: grouped(self.events["tid"]))
        mine: Events = self.events[threads.rows(tid)]
        return mine

    def once(self, what: str, make: Callable[[], _Made]) -> _Made:
        """Return the result of `make`, computed once for this process and cached under the name `what`."""
        if what not in self._made:
            self._made[what] = make()
        made: _Made = self._made[what]
        return made
