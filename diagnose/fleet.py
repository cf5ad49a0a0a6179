"""The fleet: all that is known about one job at one moment, as columns (gather.py fills them).

Ranks are rows 0..R-1, sorted by rank number; every other table refers to ranks by that row. Steps are matrices of R rows
and S columns, a column being one iteration of the whole job. 100,000 ranks are possible: no dicts, no rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Ranks:
    """One row per rank, sorted by rank number."""

    number: Ints
    host: tuple[str, ...]  # the name the operator knows: the node name, where ranks of one host see different ones
    observed_on: tuple[str, ...]  # the host whose observer saw it
    netns: Ints
    role: tuple[str, ...]
    world_size: Ints
    pid: Ints
    addresses: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    state: tuple[str, ...]
    stopped_s: Floats
    last_progress_s: Floats  # NaN: no marker in the whole window
    in_collective_s: Floats
    ended_s: Floats  # NaN: did not end in the window
    exit_status: Floats  # as waitpid gives it; NaN: not known
    lost_events: Ints

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class Steps:
    """Matrices of ranks x steps, NaN where a rank has no such step. Seconds."""

    start_s: Floats  # one per column: start of the step on the reference rank
    seconds: Floats
    own_s: Floats
    wait_s: Floats
    io_s: Floats
    sched_s: Floats
    sync_s: Floats

    @property
    def count(self) -> int:
        return int(self.seconds.shape[1])


@dataclass(frozen=True, slots=True)
class Labels:
    """A text column: one code per row, and the texts the codes stand for."""

    codes: Ints
    values: tuple[str, ...]

    def code(self, text: str) -> int:
        """Code of `text`; -1 if it does not occur."""
        try:
            return self.values.index(text)
        except ValueError:
            return -1

    def at(self, row: int) -> str:
        return self.values[int(self.codes[row])]


@dataclass(frozen=True, slots=True)
class Patterns:
    """What ranks spent their time on: one row per rank, thread, function and stack."""

    rank: Ints  # row in Ranks
    thread: Labels
    kind: Labels
    name: Labels
    file: Labels
    line: Ints
    detail: Labels
    caller: Labels
    stack: Labels
    beta: Floats
    count: Ints
    per_step_s: Floats

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True)
class Flows:
    """TCP connections of ranks, as seen by the local end."""

    rank: Ints
    local: tuple[str, ...]  # address without port
    peer: tuple[str, ...]
    interface: tuple[str, ...]
    sent_bytes: Floats
    retransmitted_bytes: Floats
    sending_s: Floats  # busy - rwnd_limited - sndbuf_limited: time in which only the network held the data back
    rtt_s: Floats
    min_rtt_s: Floats

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True)
class Counter:
    """One hardware or kernel counter over the window."""

    observed_on: str
    scope: str
    instance: str
    rank: int  # row in Ranks; -1: all of the host
    name: str
    unit: str
    kind: str
    value: float
    maximum: float
    limit: float  # NaN where there is none


@dataclass(frozen=True, slots=True)
class Pipelines:
    """Which ranks pass micro-batches to one another, and how many in each step."""

    member: Ints  # one per rank: number of its pipeline
    micro_batches: int
    once_s: Floats  # ranks x steps: own time in functions that run less often than once per micro-batch
    transfer_s: Floats  # per step: least stay of any rank in each collective that is no message, added up

    def since(self, first: int) -> Pipelines:
        """The same from step `first` on."""
        return Pipelines(self.member, self.micro_batches, self.once_s[:, first:], self.transfer_s[first:])


@dataclass(frozen=True, slots=True)
class Fleet:
    """All that is known about one job at one moment."""

    job: str
    start: float  # unix time; NaN where the data has no clock
    seconds: float
    windows: int
    ranks: Ranks
    steps: Steps
    patterns: Patterns
    flows: Flows
    counters: tuple[Counter, ...]
    notes: tuple[str, ...]
    timed: bool = False  # from timings that somebody else measured: no scheduler noise floor, no counters
    pipelines: Pipelines | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.ranks.host) - {""}))
