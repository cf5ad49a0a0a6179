"""Rows of the window's tables, one frozen class per table; fields are the columns of schema.py, in
its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class RankRow:
    """A row of the table `ranks`: one rank."""

    job: str
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    guessed: bool
    role: str
    host: str
    node: str
    container: str
    pid: int
    inner_pid: int
    netns: int
    addresses: tuple[str, ...]
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    cpus: str
    python: str
    command: str
    title: str
    age_s: float | None
    state: str
    stopped_s: float
    last_progress_s: float | None
    in_collective_s: float
    ended_s: float | None
    exit_status: int | None
    training_thread: int
    stack_source: str
    samples: int
    failed_samples: int
    owner: int = -1
    gpu_ids: str = ""
    machine: str = ""
    run: str = ""
    tracer: str = ""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A row of the table `steps`: one step of one rank."""

    rank: int
    step: int
    start_s: float
    seconds: float
    own_s: float
    wait_s: float
    io_s: float
    sched_s: float
    sync_s: float
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PatternRow:
    """A row of the table `patterns`: one function of one rank with one stack."""

    rank: int
    thread: str
    kind: str
    name: str
    file: str
    line: int
    detail: str
    caller: str
    stack: int
    holder_name: str
    holder_file: str
    holder_line: int
    holder_thread: str
    native: str | None
    beta: float
    mu: float | None
    sigma: float | None
    resource: str
    count: int
    total_s: float
    p50_s: float
    p99_s: float
    max_s: float
    per_step_s: float | None
    per_step_sd_s: float | None
    bytes: int
    growth_s: float | None = None
    native_share: float | None = None
    kernel_share: float | None = None
    kernel_for: str = ""


@dataclass(frozen=True, slots=True)
class StackRow:
    """A row of the table `stacks`: one frame of one or many stacks."""

    parent: int
    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A row of the table `pauses`: something that one rank does in a few of its steps only."""

    rank: int
    name: str
    file: str
    line: int
    inside: str
    more: bool
    count: int
    total_s: float
    p50_s: float
    max_s: float
    wait_s: float
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A row of the table `collectives`: one collective of one rank."""

    rank: int
    sequence: int
    step: int
    slot: int
    op: str
    stay_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class FlowRow:
    """A row of the table `flows`: one TCP connection of one rank."""

    rank: int
    local: str
    peer: str
    interface: str
    sent_bytes: int
    received_bytes: int
    retransmitted_bytes: int
    busy_s: float
    rwnd_limited_s: float
    sndbuf_limited_s: float
    rtt_s: float
    min_rtt_s: float
    delivery_rate_hz: float
    carried_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A row of the table `counters`: one counter over the window. Defaults: whole host, no device,
    no process.
    """

    scope: str
    instance: str = ""
    comm: str = ""
    pid: int = -1
    rank: int = -1
    name: str = ""
    unit: str = "s"
    kind: str = "delta"
    value: float = 0.0
    minimum: float | None = None
    maximum: float | None = None
    limit: float | None = None


Row: TypeAlias = RankRow | StepRow | PatternRow | StackRow | PauseRow | CollectiveRow | FlowRow | CounterRow

ROWS: dict[str, type[Row]] = {
    "ranks": RankRow,
    "steps": StepRow,
    "patterns": PatternRow,
    "stacks": StackRow,
    "pauses": PauseRow,
    "collectives": CollectiveRow,
    "flows": FlowRow,
    "counters": CounterRow,
}
