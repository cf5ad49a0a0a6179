"""The fleet: all that is known about one job at one moment, as columns (gather.py fills them).

Ranks are rows 0..R-1, sorted by rank number; every other table refers to ranks by that row. Steps are matrices of R rows
and S columns, a column being one iteration of the whole job. 100,000 ranks are possible: no dicts, no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.counters import Counters
from rankscope.diagnose.fleet.labels import Holders, Labels
from rankscope.diagnose.fleet.large.topology import Group
from rankscope.diagnose.fleet.stacks import Stacks
from rankscope.diagnose.flight.account import Blame
from rankscope.diagnose.lacking import Lacking
from rankscope.diagnose.verdict.note import Note
from rankscope.probes.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Gone:
    """A rank that nobody saw, and that is missed. `communicator`: one of NCCL in which it does not answer."""

    number: int
    host: str  # '' where that has no window
    observed_on: str
    by_census: bool = False  # the observer looked for it
    communicator: str = ""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One row per rank, sorted by rank number."""

    number: Ints
    host: tuple[str, ...]  # the name the operator knows: the node name, where ranks of one host see different ones
    observed_on: tuple[str, ...]  # the host whose observer saw it
    netns: Ints
    role: tuple[str, ...]
    world_size: Ints  # 0 where nobody says; bounded by budgets.WORLD_MOST
    pid: Ints  # -1: nobody saw it (with_gone)
    addresses: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    state: tuple[str, ...]
    stopped_s: Floats
    last_progress_s: Floats  # NaN: no marker in the whole window
    in_collective_s: Floats
    ended_s: Floats  # below 0: before the window; NaN: did not end
    exit_status: Floats  # as waitpid gives it; NaN: not known
    gpus: tuple[tuple[str, ...], ...] = ()  # 'gpu2'; () where nobody knows
    nics: tuple[tuple[str, ...], ...] = ()  # 'mlx5_3', 'eth0'
    guessed: tuple[int, ...] = ()  # numbers that are guesses
    gpu_ids: tuple[str, ...] = ()  # UUIDs of its GPUs; '' where nobody says
    machine: tuple[str, ...] = ()  # what names the host whatever it is called
    age_s: Floats | None = None  # how long each process had run when the window began; NaN, None: not known

    def __len__(self) -> int:
        return len(self.number)

    def missing(self) -> Ints:
        """Numbers of ranks that the job has and nobody saw here."""
        return numbers_missing(self.number, int(self.world_size.max(initial=0)))

    @property
    def seen(self) -> Bools:
        """Whether there was a process of it."""
        return self.pid >= 0

    def with_gone(self, gone: Sequence[Gone]) -> Ranks:
        """Behind these, whose rows they keep, those that had ended before anybody looked."""
        count = len(gone)
        if not count:
            return self
        none, zeros = np.full(count, np.nan), np.zeros(count)
        of_each: dict[str, Any] = {
            "number": np.array([each.number for each in gone], dtype=np.int64),
            "host": tuple(each.host for each in gone),
            "observed_on": tuple(each.observed_on for each in gone),
            "netns": zeros.astype(np.int64),
            "world_size": zeros.astype(np.int64),
            "pid": np.full(count, -1, dtype=np.int64),
            "state": ("exited",) * count,
            "stopped_s": zeros,
            "in_collective_s": zeros,
            **dict.fromkeys(("last_progress_s", "ended_s", "exit_status", "age_s"), none),
            **dict.fromkeys(("addresses", "gpus", "nics"), ((),) * count),
            **dict.fromkeys(("role", "cpus", "gpu_ids", "machine"), ("",) * count),
        }
        joined: dict[str, Any] = {}
        for name, more in of_each.items():
            values = getattr(self, name)
            if isinstance(values, np.ndarray):
                joined[name] = np.concatenate([values, more])
            elif values:  # what nobody knows of any stays so
                joined[name] = values + more
        return replace(self, **joined)

    def taken(self, rows: Ints) -> Ranks:
        """These rows alone."""
        kept = {}
        for each in fields(self):
            values = getattr(self, each.name)
            if isinstance(values, np.ndarray):
                values = values[rows]
            elif values and each.name != "guessed":
                values = tuple(values[row] for row in rows.tolist())
            kept[each.name] = values
        return replace(Ranks(**kept), guessed=tuple(sorted(set(self.guessed) & set(self.number[rows].tolist()))))


def numbers_missing(numbers: Ints, world: int) -> Ints:
    """Those from 0 to `world` that are not among `numbers`, rising."""
    gone = np.ones(world, dtype=bool)
    gone[numbers[(numbers >= 0) & (numbers < world)]] = False
    return np.flatnonzero(gone)


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
    # The step's number in its rank's window; -1 where the rank has no such step.
    number: Ints | None = field(default=None, kw_only=True)

    @property
    def count(self) -> int:
        return int(self.seconds.shape[1])

    @property
    def of_each(self) -> Ints:
        """How many steps each rank has; 1 where it has none, to divide by."""
        return self.of_those(np.arange(len(self.seconds)))

    def of_those(self, rows: Ints) -> Ints:
        """The same of these ranks."""
        return np.asarray(np.maximum(np.isfinite(self.seconds[rows]).sum(axis=1), 1), dtype=np.int64)

    def taken(self, rows: Ints) -> Steps:
        """The steps of these ranks alone."""
        matrices = {
            name: getattr(self, name)[rows] for name in ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")
        }
        return Steps(self.start_s, **matrices, number=None if self.number is None else self.number[rows])


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
    stack: Stacks
    beta: Floats
    count: Ints
    per_step_s: Floats
    sd_s: Floats | None = None  # standard deviation over steps of the seconds per step; NaN where it is not known
    bytes: Ints | None = None  # moved in the window
    mu: Floats | None = None  # mean utilisation of the function's resource; NaN where it is not known
    sigma: Floats | None = None  # its standard deviation
    holder: Holders | None = None  # who held the GIL while it was waited for
    native: Labels | None = None  # most samples of a running Python function: in 'kernel', a native function, ''

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def share(self) -> Floats:
        """β where it can be a share; 0 where it cannot, as in windows that somebody forged."""
        known: Floats = np.where((self.beta >= 0) & (self.beta <= 1), self.beta, 0.0)
        return known


@dataclass(frozen=True, slots=True)
class Pauses:
    """What ranks do in a few of their steps only, and make them longer by: one row per rank and function."""

    rank: Ints  # row in Ranks
    name: Labels
    file: Labels
    line: Ints
    inside: Labels  # what of a library is called in the function then; '' where the function itself is
    more: Bools  # the function is in all other steps as well: the seconds are what it takes more than there
    count: Ints  # steps
    total_s: Floats
    p50_s: Floats  # of one step
    wait_s: Floats  # part of total_s inside collectives
    step: Ints  # numbers of the steps in their ranks' windows, row after row
    first: Ints  # where those of each row begin, and where the last one's end

    @classmethod
    def none(cls) -> Pauses:
        """Where nothing was seen of any."""
        no, nothing, unnamed = np.empty(0, np.int64), np.empty(0), Labels(np.empty(0, np.int64), ())
        first = np.zeros(1, np.int64)
        return cls(no, unnamed, unnamed, no, unnamed, no > 0, no, nothing, nothing, nothing, no, first)

    def __len__(self) -> int:
        return len(self.rank)

    def steps_of(self, row: int) -> Ints:
        """Numbers of the steps of one row; of many only the first."""
        return self.step[int(self.first[row]) : int(self.first[row + 1])]


@dataclass(frozen=True, slots=True)
class Flows:
    """TCP connections of ranks, as seen by the local end."""

    rank: Ints
    local: tuple[str, ...]  # address without port
    peer: tuple[str, ...]
    interface: tuple[str, ...]
    sent_bytes: Floats
    received_bytes: Floats
    retransmitted_bytes: Floats
    sending_s: Floats  # busy - rwnd_limited - sndbuf_limited: time in which only the network held the data back
    unacknowledged_s: Floats  # busy - rwnd_limited: data was out, and not for want of room at the receiver
    rtt_s: Floats
    min_rtt_s: Floats
    # Both ways since the connection was opened; NaN where it is not known, or the other end is no rank of the job that was seen here.
    exchanged_bytes: Floats | None = None

    @classmethod
    def none(cls) -> Flows:
        """Where no connection was seen."""
        return cls(np.empty(0, np.int64), (), (), (), *(np.empty(0) for _ in range(7)))

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True)
class Slots:
    """Stays in the collectives of each step (fleet/collectives/slots.py reads them, model/slots.py uses them)."""

    stay_s: Floats  # ranks x steps x slots, seconds; NaN where it is not known
    ops: tuple[str, ...]  # one per slot
    whole: bool = True  # whether the stays of a step are all the waiting that it shows, and nothing else
    part: float = 1.0  # of collectives that overlap, how much of their stays is waiting: so much of them stands here

    def since(self, first: int) -> Slots:
        """The same from step `first` on."""
        return replace(self, stay_s=self.stay_s[:, first:])


@dataclass(frozen=True, slots=True)
class Pipelines:
    """Which ranks pass micro-batches to one another, and how many in each step."""

    member: Ints  # one per rank: number of its pipeline
    micro_batches: int
    once_s: Floats  # ranks x steps: own time in functions that run less often than once per micro-batch
    usual_once_s: Floats  # what of it is usual: the peers' median in the step, or the rank's own over the steps, whichever is less
    transfer_s: Floats  # per step: least stay of any rank in each collective that is no message, added up

    def since(self, first: int) -> Pipelines:
        """The same from step `first` on."""
        once, usual = self.once_s[:, first:], self.usual_once_s[:, first:]
        return Pipelines(self.member, self.micro_batches, once, usual, self.transfer_s[first:])


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
    counters: Counters
    notes: tuple[Note, ...]
    sampling_s: float = limits.SAMPLING_S  # what a sample of a stack stands for
    lacking: tuple[Lacking, ...] = ()  # sources that were not there, on some of the hosts
    unseen: tuple[Lacking, ...] = ()  # other hosts of the job, left out as these sources were not there
    lost_events: int = 0  # between kernel and observers, on all hosts
    timed: bool = False  # from timings that somebody else measured: no scheduler noise floor, no counters
    pipelines: Pipelines | None = None
    slots: Slots | None = None
    collectives: float = 1.0  # how many a rank makes in a step
    pauses: Pauses = field(default_factory=Pauses.none)
    title: str = ""  # what people call the job; '' where nobody says
    groups: tuple[Group, ...] = ()  # hosts that share a rack, a switch, a file system, where somebody says so
    flight: tuple[
        Blame, ...
    ] = ()  # who keeps the others waiting by their flight recorders, where somebody gives the dumps
    gone: tuple[Gone, ...] = ()  # ranks that are no process any more; of a fleet that is here whole
    looked_at: int = 0  # of a large fleet, how many ranks were compared, these among them; 0: these are all
    looked_at_hosts: frozenset[str] = frozenset()  # and on which hosts; empty: on those of these ranks
    longest: int = 0  # and how many of each step are here because of all they were the longest in it

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.ranks.host) - {""}))

    def pause_columns(self, entry: int) -> Ints:
        """The columns of `steps` in which a pause (row of `pauses`) is."""
        numbers = self.steps.number
        if numbers is None or not self.steps.count:
            return np.empty(0, np.int64)
        among = np.isin(numbers[int(self.pauses.rank[entry])], self.pauses.steps_of(entry))
        return np.flatnonzero(among).astype(np.int64)

    def bytes_per_step(self, kind: str, name: str = "") -> Floats:
        """What the functions of a kind (of this name, if one is given) move, one entry per rank; 0 where nobody counts."""
        table, steps = self.patterns, self.steps.of_each
        if table.bytes is None:
            return np.zeros(len(steps))
        rows = table.kind.codes == table.kind.code(kind)
        if name:
            rows &= table.name.codes == table.name.code(name)
        total = np.bincount(table.rank[rows], weights=table.bytes[rows], minlength=len(steps))
        return np.asarray(total / steps, dtype=np.float64)
