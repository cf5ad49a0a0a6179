"""The fleet: all that is known about one job in one window of time, as columns (filled by
gather.py).

Ranks are rows 0..R-1, sorted by rank number; every other table refers to ranks by that row. Steps
are matrices of R rows and S columns, a column being one iteration of the whole job. Columns instead
of objects make 100,000 ranks possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.counters import Counters
from rankscope.diagnose.infer.fleet.labels import Holders, Labels
from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.diagnose.infer.fleet.stacks import Stacks
from rankscope.diagnose.infer.flight.account import Blame
from rankscope.diagnose.infer.lacking import Lacking
from rankscope.diagnose.infer.verdict.note import Note
from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Gone:
    """A rank that should exist and was not observed.

    `communicator`: an NCCL communicator in which it does not answer.
    """

    number: int
    host: str  # '' where its host has no window
    observed_on: str
    by_census: bool = False  # the observer searched and did not find it
    communicator: str = ""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One row per rank, sorted by rank number."""

    number: Ints
    host: tuple[str, ...]  # the operator's name for it: the node name, where ranks of one host see different ones
    observed_on: tuple[str, ...]  # the host whose observer saw it
    netns: Ints
    role: tuple[str, ...]
    world_size: Ints  # 0: unknown; at most budgets.WORLD_MOST
    pid: Ints  # -1: not observed (with_gone)
    addresses: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    state: tuple[str, ...]
    stopped_s: Floats
    last_progress_s: Floats  # NaN: no marker in the whole window
    in_collective_s: Floats
    ended_s: Floats  # below 0: before the window; NaN: did not end
    exit_status: Floats  # as waitpid gives it; NaN: not known
    gpus: tuple[tuple[str, ...], ...] = ()  # 'gpu2'; (): unknown
    nics: tuple[tuple[str, ...], ...] = ()  # 'mlx5_3', 'eth0'
    guessed: tuple[int, ...] = ()  # numbers that are guesses
    gpu_ids: tuple[str, ...] = ()  # UUIDs of its GPUs; '': unknown
    tracer: tuple[str, ...] = ()  # program that holds the rank by tracing, with its pid; '' if none
    machine: tuple[str, ...] = ()  # identifies the host whatever its name
    age_s: Floats | None = None  # age of each process when the window began; NaN, None: unknown

    def __len__(self) -> int:
        return len(self.number)

    def missing(self) -> Ints:
        """Rank numbers below the world size that were not observed, rising."""
        return numbers_missing(self.number, int(self.world_size.max(initial=0)))

    @property
    def seen(self) -> Bools:
        """Whether a process of each rank was observed."""
        return self.pid >= 0

    def with_gone(self, gone: Sequence[Gone]) -> Ranks:
        """Append a row for each rank that had ended before the observation (`gone`), with unknown values.

        Existing rows keep their place.
        """
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
            **dict.fromkeys(("role", "cpus", "gpu_ids", "machine", "tracer"), ("",) * count),
        }
        joined: dict[str, Any] = {}
        for name, more in of_each.items():
            values = getattr(self, name)
            if isinstance(values, np.ndarray):
                joined[name] = np.concatenate([values, more])
            elif values:  # an empty column means unknown for all
                joined[name] = values + more
        return replace(self, **joined)

    def taken(self, rows: Ints) -> Ranks:
        """Select these rows."""
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
    """Numbers from 0 to `world` - 1 that are not among `numbers`, rising."""
    gone = np.ones(world, dtype=bool)
    gone[numbers[(numbers >= 0) & (numbers < world)]] = False
    return np.flatnonzero(gone)


@dataclass(frozen=True, slots=True)
class Steps:
    """Matrices of ranks x steps in seconds; NaN where a rank has no such step."""

    start_s: Floats  # one per column: start of the step on the reference rank
    seconds: Floats
    own_s: Floats
    wait_s: Floats
    io_s: Floats
    sched_s: Floats
    sync_s: Floats
    # Step number in the rank's window; -1 where the rank has no such step.
    number: Ints | None = field(default=None, kw_only=True)
    # Part of wait_s in which a rank waits for servers of the run; None: no rank does.
    asked_s: Floats | None = field(default=None, kw_only=True)

    @property
    def count(self) -> int:
        return int(self.seconds.shape[1])

    @property
    def of_each(self) -> Ints:
        """Number of steps by rank; 1 for a rank without steps, so that it can divide."""
        return self.of_those(np.arange(len(self.seconds)))

    def of_those(self, rows: Ints) -> Ints:
        """Number of steps of these ranks (rows); 1 for a rank without steps."""
        return np.asarray(np.maximum(np.isfinite(self.seconds[rows]).sum(axis=1), 1), dtype=np.int64)

    def taken(self, rows: Ints) -> Steps:
        """Select the steps of these ranks (rows)."""
        matrices = {
            name: getattr(self, name)[rows] for name in ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")
        }
        return Steps(
            self.start_s,
            **matrices,
            number=None if self.number is None else self.number[rows],
            asked_s=None if self.asked_s is None else self.asked_s[rows],
        )


@dataclass(frozen=True, slots=True)
class Patterns:
    """Where ranks spent their time: one row per rank, thread, function and stack."""

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
    holder: Holders | None = None  # function that held the GIL during the wait
    native: Labels | None = None  # native code of most running samples: 'kernel', a function, or ''
    native_share: Floats | None = None  # of running samples, those in `native`; NaN where it is not known
    growth_s: Floats | None = None  # per step, last third of the steps less the first; NaN where it is not known
    kernel_share: Floats | None = None  # of running samples, those in the kernel; NaN where it is not known
    kernel_for: Labels | None = None  # what most of them were for: a system call, 'page fault', or ''

    def __len__(self) -> int:
        return len(self.rank)

    def on_gpu(self, kind: str) -> Bools:
        """Mask of the rows of the GPU's thread: its kernels by launching code ('gpu'), or waits for it ('sync')."""
        chosen: Bools = (self.thread.codes == self.thread.code("gpu")) & (self.kind.codes == self.kind.code(kind))
        return chosen

    @property
    def share(self) -> Floats:
        """Share β of the window by row; 0 where it is outside [0, 1], as in forged windows."""
        known: Floats = np.where((self.beta >= 0) & (self.beta <= 1), self.beta, 0.0)
        return known


@dataclass(frozen=True, slots=True)
class Pauses:
    """Functions that lengthen only a few steps of a rank: one row per rank and function."""

    rank: Ints  # row in Ranks
    name: Labels
    file: Labels
    line: Ints
    inside: Labels  # library function that it calls then; '': its own code
    more: Bools  # it runs in all other steps too: seconds count only the excess over those
    count: Ints  # steps
    total_s: Floats
    p50_s: Floats  # of one step
    wait_s: Floats  # part of total_s inside collectives
    step: Ints  # numbers of the steps in their ranks' windows, row after row
    first: Ints  # offsets into `step` by row, plus the end

    @classmethod
    def none(cls) -> Pauses:
        """An empty table, for windows without pauses."""
        no, nothing, unnamed = np.empty(0, np.int64), np.empty(0), Labels(np.empty(0, np.int64), ())
        first = np.zeros(1, np.int64)
        return cls(no, unnamed, unnamed, no, unnamed, no > 0, no, nothing, nothing, nothing, no, first)

    def __len__(self) -> int:
        return len(self.rank)

    def steps_of(self, row: int) -> Ints:
        """Step numbers of one row; only the first ones if there are many."""
        return self.step[int(self.first[row]) : int(self.first[row + 1])]


@dataclass(frozen=True, slots=True)
class Flows:
    """TCP connections of ranks, as seen from the local end."""

    rank: Ints
    local: tuple[str, ...]  # address without port
    peer: tuple[str, ...]
    interface: tuple[str, ...]
    sent_bytes: Floats
    received_bytes: Floats
    retransmitted_bytes: Floats
    sending_s: Floats  # busy - rwnd_limited - sndbuf_limited: time limited by the network alone
    unacknowledged_s: Floats  # busy - rwnd_limited: data in flight, not limited by the receiver's window
    rtt_s: Floats
    min_rtt_s: Floats
    # Both ways since the connection opened; NaN: unknown, or the other end is no observed rank of
    # the job.
    exchanged_bytes: Floats | None = None

    @classmethod
    def none(cls) -> Flows:
        """An empty table, for windows without connections."""
        return cls(np.empty(0, np.int64), (), (), (), *(np.empty(0) for _ in range(7)))

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True)
class Slots:
    """Stays in the collectives of each step (read by fleet/collectives/slots.py, used by
    model/slots.py)."""

    stay_s: Floats  # ranks x steps x slots, seconds; NaN where it is not known
    ops: tuple[str, ...]  # one per slot
    whole: bool = True  # whether the stays of a step add up to its waiting
    part: float = 1.0  # share of the stays that is waiting where collectives overlap; `stay_s` is scaled by it


@dataclass(frozen=True, slots=True)
class Pipelines:
    """Pipeline of each rank, micro-batches per step, own time outside micro-batches, and transfer
    time."""

    member: Ints  # one per rank: number of its pipeline
    micro_batches: int
    once_s: Floats  # ranks x steps: own time in functions that run less often than once per micro-batch
    usual_once_s: Floats  # its usual part: the lesser of the peers' median in the step and the rank's own median
    transfer_s: Floats  # per step: sum over collectives other than messages of the least stay of any rank

    def since(self, first: int) -> Pipelines:
        """Drop the steps before step `first`."""
        once, usual = self.once_s[:, first:], self.usual_once_s[:, first:]
        return Pipelines(self.member, self.micro_batches, once, usual, self.transfer_s[first:])


@dataclass(frozen=True, slots=True)
class Fleet:
    """All that is known about one job in one window of time."""

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
    sampling_s: float = limits.SAMPLING_S  # interval between stack samples
    lacking: tuple[Lacking, ...] = ()  # sources missing on some of the hosts
    unseen: tuple[Lacking, ...] = ()  # sources missing on other hosts of the job, which were left out for that
    lost_events: int = 0  # between kernel and observers, on all hosts
    timed: bool = False  # from a file of timings (--steps): no scheduler noise floor, no counters
    pipelines: Pipelines | None = None
    slots: Slots | None = None
    collectives: float = 1.0  # number that a rank makes in a step
    pauses: Pauses = field(default_factory=Pauses.none)
    title: str = ""  # the job's name for people; '': unknown
    groups: tuple[Group, ...] = ()  # hosts that share a rack, a switch, a file system (--topology)
    flight: tuple[Blame, ...] = ()  # ranks the others wait for, by dumps of NCCL's flight recorder (if given)
    gone: tuple[Gone, ...] = ()  # ranks without a process; only known if the whole fleet was read
    looked_at: int = 0  # in a large fleet: ranks compared in all, including these; 0: just these
    looked_at_hosts: frozenset[str] = frozenset()  # hosts of the compared ranks; empty: those of these ranks
    longest: int = 0  # ranks per step that were read because they are the longest of all

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names of the ranks, sorted, each once; unknown ones are left out."""
        return tuple(sorted(set(self.ranks.host) - {""}))

    def pause_columns(self, entry: int) -> Ints:
        """Columns of `steps` in which a pause occurs; `entry` is a row of `pauses`."""
        numbers = self.steps.number
        if numbers is None or not self.steps.count:
            return np.empty(0, np.int64)
        among = np.isin(numbers[int(self.pauses.rank[entry])], self.pauses.steps_of(entry))
        return np.flatnonzero(among).astype(np.int64)

    def bytes_per_step(self, kind: str, name: str = "") -> Floats:
        """Bytes per step by rank, moved by the functions of a kind (and name, if given); 0 if not counted."""
        table, steps = self.patterns, self.steps.of_each
        if table.bytes is None:
            return np.zeros(len(steps))
        rows = table.kind.codes == table.kind.code(kind)
        if name:
            rows &= table.name.codes == table.name.code(name)
        total = np.bincount(table.rank[rows], weights=table.bytes[rows], minlength=len(steps))
        return np.asarray(total / steps, dtype=np.float64)
