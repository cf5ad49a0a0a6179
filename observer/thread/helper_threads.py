"""Threads of a rank without Python state: autograd, watchdogs, collective and thread pools.

They are not on the critical path by themselves, but the training thread waits for their work. Each
is identified by its name and by the native function in which it was sampled most often; threads of
the same name and function are one row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rankscope.observer.window.rows import CounterRow
from rankscope.probes.base.grouped import grouped
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.sched.probe import ThreadTimes

MAX_ROWS = 12  # per rank, the busiest first
_LEAST_S = 0.001
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class HelperThreads:
    """Threads of one name that mostly run one native function; seconds over the window, summed."""

    name: str
    leaf: str  # '' where none was sampled
    threads: int
    run_s: float
    ready_s: float

    @property
    def instance(self) -> str:
        """Label: `pt_autograd_#: at::native::addmm (2 threads)`."""
        count = f" ({self.threads} threads)" if self.threads > 1 else ""
        return f"{self.name}{': ' + self.leaf if self.leaf else ''}{count}"


def helper_threads(
    now: Iterable[ThreadTimes],
    before: Mapping[int, ThreadTimes],
    events: Events,
    native: Mapping[int, str],
    name_of: Callable[[int], str],
) -> tuple[HelperThreads, ...]:
    """Group the helper threads in `now` (which excludes Python threads), busiest first.

    `events`: of this process; `native`: instruction pointer -> function; `name_of`: the thread's
    name in /proc. Numbers in a name become '#', because a pool numbers its threads.
    """
    found = events[events["type"] == ring.NATIVE]
    of_thread = grouped(found["tid"])
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for times in now:
        then = before.get(times.tid)
        run_s = times.run_s - (then.run_s if then else 0.0)
        ready_s = times.ready_s - (then.ready_s if then else 0.0)
        if run_s + ready_s < _LEAST_S:
            continue
        places, counts = np.unique(found["arg"][of_thread.rows(times.tid)], return_counts=True)
        leaves: Counter[str] = Counter()
        for place, count in zip(places.astype(np.uint64).tolist(), counts.tolist(), strict=True):
            leaves[native.get(place, "")] += count
        leaf = leaves.most_common(1)[0][0] if leaves else ""
        groups.setdefault((_NUMBER.sub("#", name_of(times.tid)), leaf), []).append((run_s, ready_s))
    rows = [
        HelperThreads(name, leaf, len(all_of), sum(run for run, _ in all_of), sum(ready for _, ready in all_of))
        for (name, leaf), all_of in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.run_s)[:MAX_ROWS])


def rows(rank: int, helpers: Iterable[HelperThreads]) -> list[CounterRow]:
    """Build rows of the table `counters`, scope thread."""
    return [
        CounterRow("thread", helper.instance, rank=rank, name=name, value=value)
        for helper in helpers
        for name, value in (("thread.run_s", helper.run_s), ("thread.ready_s", helper.ready_s))
    ]
