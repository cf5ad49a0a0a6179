"""Sources of data that a verdict rests on, and the state of each in a window: observers write it, judges read it.

A source that was refused leaves no trace in the tables: a table without waits looks like a job that
never waits. So every window states for each source whether it was available, and why not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any


class Source(str, Enum):
    """Origin of the facts in a window."""

    SAMPLES = "samples"  # stacks of running threads (rs_sample)
    RUN_QUEUE = "run-queue"  # threads that leave a CPU, wake and wait for one (rs_sched_switch, rs_sched_waking)
    COLLECTIVES = "collectives"  # timed calls that mark steps and wait for other ranks or the GPU
    CALLS = "calls"  # other timed calls: copies, allocations, garbage collection, launches
    FILE_CALLS = "file-calls"  # read, write and sync calls, with bytes and device
    EXITS = "exits"  # processes that end, with their status
    FLOWS = "flows"  # TCP connections
    GPU = "gpu"  # GPUs and their links
    PORTS = "ports"  # network ports and PCI links
    HOST = "host-counters"  # counters of the host, of control groups, disks and interfaces


# without one of them nothing is judged
ESSENTIAL = (Source.SAMPLES, Source.RUN_QUEUE, Source.COLLECTIVES)

IN_WORDS: Mapping[Source, str] = {
    Source.SAMPLES: "stacks of running threads",
    Source.RUN_QUEUE: "waiting and queueing of threads",
    Source.COLLECTIVES: "calls that mark steps and wait for other ranks",
    Source.CALLS: "copies, allocations and garbage collection",
    Source.FILE_CALLS: "file calls",
    Source.EXITS: "ends of processes",
    Source.FLOWS: "network connections",
    Source.GPU: "GPUs",
    Source.PORTS: "network ports and PCI links",
    Source.HOST: "counters of the host",
}


class Seen(str, Enum):
    """How much a source gave."""

    WHOLE = "whole"
    PART = "part"  # some data is lost; the rest is reliable
    NOT = "not"  # nothing, or too little to be reliable


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of one source in a window. `why`: '' where it was whole."""

    source: Source
    seen: Seen = Seen.WHOLE
    why: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return state, (self.source.value, self.seen.value, self.why)


States = tuple[SourceState, ...]


@lru_cache(maxsize=1024)
def state(source: str, seen: str, why: str) -> SourceState:
    """Return the shared state object of these words; 100,000 windows have the same. ValueError for
    unknown names.
    """
    return SourceState(Source(source), Seen(seen), why)


def states(found: Iterable[SourceState]) -> States:
    """Combine states to one per source, in the order of `Source`: the worst found, whole where none was."""
    worst = {source: SourceState(source) for source in Source}
    order = list(Seen)
    for one in found:
        if order.index(one.seen) > order.index(worst[one.source].seen):
            worst[one.source] = one
    return _shared(tuple(state(one.source.value, one.seen.value, one.why) for one in worst.values()))


@lru_cache(maxsize=256)
def _shared(one: States) -> States:
    """Return the first tuple of states that was equal to this one, so that all windows share one object."""
    return one


WHOLE = states(())

# Notes that observers wrote before states existed.
_NOTED: tuple[tuple[str, Source], ...] = (
    ("running threads are not sampled", Source.SAMPLES),
    ("rs_sched_switch is not attached", Source.RUN_QUEUE),
    ("rs_sched_waking is not attached", Source.RUN_QUEUE),
    ("rs_sched_exit is not attached", Source.EXITS),
    ("file calls are not timed", Source.FILE_CALLS),
)
_MARKING = (" in lib", " is not timed: ")  # `allreduce in libtorch_cpu.so is not timed: Permission denied`


def noted(notes: Iterable[str]) -> States:
    """Derive the states of an old window, written before states existed, from the texts of its notes."""
    found = []
    for note in notes:
        found += [SourceState(source, Seen.NOT, note) for begin, source in _NOTED if note.startswith(begin)]
        if all(part in note for part in _MARKING) and not note.startswith("gc "):
            found.append(SourceState(Source.COLLECTIVES, Seen.NOT, note))
    return states(found)
