"""From what the probes of one window delivered to the rows of one rank: pure, no I/O.

events → markers → steps; events of the training thread → timeline → patterns; collectives of any thread → stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankscope.observer.gpu import overlay
from rankscope.observer.gpu import rows as gpu_rows
from rankscope.observer.gpu.levels import Shares
from rankscope.observer.gpu.overlay import GpuTime
from rankscope.observer.gpu.rows import GpuView
from rankscope.observer.thread import gil, patterns, timeline
from rankscope.observer.thread.device_calls import MARKER_ROLES, device_calls, of_roles
from rankscope.observer.thread.functions import NO_STACK, Function, StackName
from rankscope.observer.thread.patterns import Labels, Pattern, Samples, StepTimes
from rankscope.observer.thread.steps import Markers, Steps, find_steps
from rankscope.observer.thread.timeline import Absences, Scopes
from rankscope.probes.arrays import Floats, Ints
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls import collectives
from rankscope.probes.calls.row import GPU_WAIT
from rankscope.probes.calls.table import CallRow
from rankscope.probes.files import probe as files

MAX_COLLECTIVES = 600  # rows per rank; of a longer window every k-th step is kept whole
_OTHER_FILE_KINDS = {
    files.FIFO: ("sync", "pipe", timeline.SYNC),
    files.SOCKET: ("sync", "socket", timeline.SYNC),
    files.CHARACTER: ("io", "device", timeline.IO),
}


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
    """Everything of one process in one window. Times in ns of CLOCK_MONOTONIC; events of this process only."""

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
    untimed: Sequence[tuple[int, int]] = ()  # stacks of the fallback sampler, with how often each was seen running
    thread_states: Mapping[int, int] = field(default_factory=dict)  # PyThreadState -> tid
    thread_names: Mapping[int, str] = field(default_factory=dict)
    native: Mapping[int, str] = field(default_factory=dict)  # user instruction pointer -> native function
    gpu: GpuView | None = None  # what the GPUs of this process did; None where none is seen
    collective_tail_s: float = 0.0  # how long its GPUs have been inside nothing but collectives at the end


@dataclass(frozen=True, slots=True)
class RankRows:
    """What one rank contributes to the tables."""

    training_thread: int
    steps: Steps
    step_times: StepTimes
    training: tuple[Pattern, ...]
    others: tuple[Pattern, ...]
    collectives: tuple[dict[str, Any], ...]
    samples: int
    stopped_s: float
    last_progress_s: float | None
    in_collective_s: float
    gpu: GpuTime | None = None


def step_period(raw: RawProcess, table: Sequence[CallRow]) -> int:
    """How many markers make a step of this rank, seen by itself; 0 where no steps are found."""
    calls = _calls(raw, table)
    return find_steps(_markers(raw, calls, table, training_thread(raw, calls, table))).period


def _calls(raw: RawProcess, table: Sequence[CallRow]) -> Events:
    calls = raw.events[raw.events["type"] == ring.CALL]
    calls = calls[~of_roles(calls, table, "gc")]
    ordered: Events = calls[np.argsort(calls["ts_ns"], kind="stable")]
    return ordered


def assemble(raw: RawProcess, table: Sequence[CallRow], period: int = 0) -> RankRows:
    """The rows of one rank. A thread without any event yields no pattern, a rank without markers no steps.

    `period`: how many markers make a step of the job; 0 where that is not known.
    """
    calls = _calls(raw, table)
    tid = training_thread(raw, calls, table)
    steps = find_steps(_markers(raw, calls, table, tid), period)
    line, absences, samples, labels = _timeline(raw, calls, table, tid, steps, raw.gpu.shares if raw.gpu else None)
    gpu: GpuTime | None = None
    if raw.gpu is not None and raw.gpu.seen:
        line, labels, gpu = gpu_rows.lay_over(line, labels, raw.gpu.shares)
    training = patterns.patterns(
        raw.window_s, line, absences, samples, labels, steps, hz=raw.hz, throttled_s=raw.throttled_s
    )
    others = side_patterns(raw, table, steps, raw.python_tids - {tid})
    times = patterns.step_times(line, steps)
    if raw.gpu is not None and gpu is None:
        times = overlay.unmeasured(times)
    if raw.gpu is not None and gpu is not None:
        training, times = gpu_rows.add_gpu(training, times, line, gpu, raw.gpu, steps, raw.window_s)
    markers = calls[of_roles(calls, table, *MARKER_ROLES)]
    last = max((float(call["ts_ns"] + call["dur_ns"]) for call in markers[-64:]), default=None)
    end_ns = raw.start_ns + raw.window_s * 1e9
    waiting_since = [since for thread, row, since in raw.open_calls if table[row].role in ("wait", "collective")]
    open_wait = raw.open_absences.get(tid)
    stuck_s = 0.0
    if open_wait is not None and open_wait.since_ns <= raw.start_ns and open_wait.state and not waiting_since:
        stuck_s = raw.window_s * is_collective(raw.stacks.get(open_wait.stack, NO_STACK))
    if not waiting_since and not stuck_s:
        stuck_s = _stuck_on_gpu(raw, table, tid)
    return RankRows(
        tid, steps, times, training, others, _collectives(raw, calls, table, steps),
        samples=int((raw.events["type"] == ring.SAMPLE).sum()),
        stopped_s=float(line.lengths[line.kind == timeline.STOPPED].sum()),
        last_progress_s=None if last is None else max((end_ns - last) / 1e9, 0.0),
        in_collective_s=max((end_ns - min(waiting_since)) / 1e9, 0.0) if waiting_since else stuck_s,
        gpu=gpu,
    )  # fmt: skip


def _stuck_on_gpu(raw: RawProcess, table: Sequence[CallRow], tid: int) -> float:
    """Seconds for which the training thread has waited for a GPU that is inside a collective; 0 if it does not.

    A thread that has been away since before the window may have entered its wait when nobody looked.
    """
    since = [since for thread, row, since in raw.open_calls if thread == tid and table[row].role == GPU_WAIT]
    away = raw.open_absences.get(tid)
    if not since and away is not None and away.since_ns <= raw.start_ns and away.state:
        since = [raw.start_ns]
    waited_s = raw.window_s - (max(min(since), raw.start_ns) - raw.start_ns) / 1e9 if since else 0.0
    return min(waited_s, raw.collective_tail_s)


def is_collective(stack: StackName) -> bool:
    """Whether a thread that is blocked with this stack waits for a collective that it entered before anybody looked.

    A collective call from Python shows its wrapper; DDP's own waits in the backward pass, which has no other reason to
    block for a whole window.
    """
    return "torch/distributed/distributed_c10d.py" in stack.text or stack.name == "_engine_run_backward"


def side_patterns(raw: RawProcess, table: Sequence[CallRow], steps: Steps, tids: Iterable[int]) -> tuple[Pattern, ...]:
    """Patterns of threads that are not on the critical path: other threads of a rank, data-loader workers."""
    found: list[Pattern] = []
    for tid in sorted(tids):
        calls = raw.events[(raw.events["type"] == ring.CALL) & (raw.events["tid"] == tid)]
        their = _timeline(raw, calls, table, tid, steps)
        found += patterns.patterns(raw.window_s, *their, steps, hz=raw.hz, on_critical_path=False)
    return tuple(found)


def training_thread(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> int:
    """The thread that waits for collectives and the GPU and runs backward passes; the main thread where none does."""
    roles = np.array([row.role in ("wait", "backward", GPU_WAIT) for row in table])
    for chosen in (calls[roles[calls["what"]]], calls):
        tids = chosen["tid"][np.isin(chosen["tid"], list(raw.python_tids))] if len(chosen) else chosen["tid"]
        if len(tids):
            values, counts = np.unique(tids, return_counts=True)
            return int(values[np.argmax(counts)])
    return raw.pid


def _seconds(raw: RawProcess, ns: Any) -> Floats:
    return (np.asarray(ns).astype(np.float64) - raw.start_ns) / 1e9


def _markers(raw: RawProcess, calls: Events, table: Sequence[CallRow], tid: int) -> Markers:
    """Calls of the training thread that are not inside another one; the collectives of all threads where it makes none."""
    calls = calls[of_roles(calls, table, *MARKER_ROLES)]
    mine = calls[calls["tid"] == tid]
    if len(mine):
        ends = np.maximum.accumulate(mine["ts_ns"] + mine["dur_ns"])
        inner = np.concatenate(([False], mine["ts_ns"][1:] < ends[:-1]))
        roles = np.array([row.role for row in table])
        # A backward pass contains the wait of DDP's reducer: both are markers, but the outer one alone would hide the wait.
        mine = mine[~inner | (roles[mine["what"]] == "wait")]
    chosen = mine if len(mine) else calls
    start = _seconds(raw, chosen["ts_ns"])
    level = frozenset(index for index, row in enumerate(table) if row.role == GPU_WAIT)
    return Markers(chosen["what"].astype(np.int64), start, start + chosen["dur_ns"].astype(np.float64) / 1e9, level)


def _timeline(
    raw: RawProcess, calls: Events, table: Sequence[CallRow], tid: int, steps: Steps, gpu: Shares | None = None
) -> tuple[timeline.Timeline, Absences, Samples, Labels]:
    mine = raw.events[raw.events["tid"] == tid]
    absences = _absences(raw, mine, tid)
    waits = calls[(calls["tid"] == tid) & of_roles(calls, table, "wait", "collective")]
    wait_start = _seconds(raw, waits["ts_ns"])
    wait_end = wait_start + waits["dur_ns"] / 1e9
    wait_rows = waits["what"].astype(np.int64)
    for thread, row, since in raw.open_calls:
        if thread == tid and table[row].role in ("wait", "collective"):
            wait_start = np.append(wait_start, max((since - raw.start_ns) / 1e9, 0.0))
            wait_end = np.append(wait_end, raw.window_s)
            wait_rows = np.append(wait_rows, row)
    reads = mine[mine["type"] == ring.FILE]
    read_start = _seconds(raw, reads["ts_ns"])
    file_functions, file_kinds = _file_functions(raw, reads)
    sampled = mine[mine["type"] == ring.SAMPLE]
    samples = Samples(_seconds(raw, sampled["ts_ns"]), sampled["stack"], sampled["arg"].astype(np.uint64))
    still = [(row, since) for thread, row, since in raw.open_calls if thread == tid]
    device = device_calls(calls[calls["tid"] == tid], table, raw.start_ns, raw.window_s, still)
    labels = Labels(
        raw.stacks,
        collective=[
            Function("collective", table[row].name, detail=table[row].family, resource="nic") for row in wait_rows
        ],
        file=file_functions,
        file_bytes=np.maximum(reads["arg"], 0),
        collective_bytes=np.zeros(len(wait_rows), dtype=np.int64),
        gil=gil.held_by(absences, raw.stacks, raw.thread_states, raw.thread_names, lambda other: _track(raw, other)),
        native=raw.native,
        device=device.functions,
        device_bytes=device.bytes,
    )
    collections = _collections(raw, mine, table, tid)
    begins = (absences.start_s, samples.time_s, wait_start, collections.start_s, device.scopes.start_s)
    first = min((float(x[0]) for x in begins if len(x)), default=raw.window_s)
    line = timeline.build(
        raw.window_s,
        absences,
        Scopes(wait_start, wait_end, np.arange(len(wait_start))),
        Scopes(read_start, read_start + reads["dur_ns"] / 1e9, np.arange(len(reads))),
        file_kinds=file_kinds,
        edges_s=steps.edge_s if gpu is None else np.concatenate((steps.edge_s, gpu.start_s, gpu.end_s)),
        queued=_queued(raw),
        collections=collections,
        device=device.scopes,
        device_kinds=device.kinds,
        known_from_s=min(max(first, 0.0), raw.window_s),
    )
    if raw.untimed and tid == raw.pid:
        samples = _spread(raw.untimed, line)
    return line, absences, samples, labels


def _track(raw: RawProcess, tid: int) -> tuple[Samples, Absences]:
    mine = raw.events[raw.events["tid"] == tid]
    sampled = mine[mine["type"] == ring.SAMPLE]
    return Samples(_seconds(raw, sampled["ts_ns"]), sampled["stack"]), _absences(raw, mine, tid)


def _collections(raw: RawProcess, mine: Events, table: Sequence[CallRow], tid: int) -> Scopes:
    """The garbage collections of one thread, the one that it is in at the end among them."""
    calls = mine[mine["type"] == ring.CALL]
    calls = calls[of_roles(calls, table, "gc")]
    start = _seconds(raw, calls["ts_ns"])
    end = start + calls["dur_ns"] / 1e9
    still = [since for thread, row, since in raw.open_calls if thread == tid and table[row].role == "gc"]
    start = np.append(start, [(since - raw.start_ns) / 1e9 for since in still])
    end = np.append(end, [raw.window_s] * len(still))
    return Scopes(start, end, np.zeros(len(start), dtype=np.int64))


def _spread(untimed: Sequence[tuple[int, int]], line: timeline.Timeline) -> Samples:
    """Samples without times, laid evenly over the running time in mixed order: right in sum, not within a step."""
    stacks = np.repeat(np.array([s for s, _ in untimed], dtype=np.uint64), [count for _, count in untimed])
    stacks = np.random.default_rng(0).permutation(stacks)
    running = line.kind == timeline.CPU
    ends = np.cumsum(line.seconds[running])
    if not len(ends) or ends[-1] <= 0:
        return Samples(np.empty(0), np.empty(0, dtype=np.uint64))
    places = (np.arange(len(stacks)) + 0.5) / len(stacks) * ends[-1]
    segment = np.minimum(np.searchsorted(ends, places), len(ends) - 1)
    return Samples(line.end_s[running][segment] - (ends[segment] - places), stacks)


def _queued(raw: RawProcess) -> Scopes:
    """When threads without Python state, which carry the collectives, stood in the run queue."""
    away = raw.events[(raw.events["type"] == ring.OFFCPU) & (raw.events["ready_ns"] > 0)]
    away = away[~np.isin(away["tid"], list(raw.python_tids))]
    end = _seconds(raw, away["ts_ns"]) + away["dur_ns"] / 1e9
    return Scopes(end - away["ready_ns"] / 1e9, end, np.zeros(len(away), dtype=np.int64))


def _absences(raw: RawProcess, mine: Events, tid: int) -> Absences:
    away = mine[mine["type"] == ring.OFFCPU]
    away = away[np.argsort(away["ts_ns"], kind="stable")]
    start = _seconds(raw, away["ts_ns"])
    columns = {
        "start_s": start,
        "end_s": start + away["dur_ns"] / 1e9,
        "ready_s": away["ready_ns"] / 1e9,
        "syscall": away["what"].astype(np.int64),
        "argument": away["arg"].astype(np.int64),
        "state": away["aux"].astype(np.int64),
        "stack": away["stack"],
    }
    still = raw.open_absences.get(tid)
    if still is not None and (still.since_ns - raw.start_ns) / 1e9 < raw.window_s:
        since = (still.since_ns - raw.start_ns) / 1e9
        ready = max(raw.window_s - (still.wake_ns - raw.start_ns) / 1e9, 0.0) if still.wake_ns else 0.0
        last = (since, raw.window_s, ready, still.syscall, still.argument, still.state, still.stack)
        columns = {
            name: np.append(column, np.array([value], dtype=column.dtype))
            for (name, column), value in zip(columns.items(), last, strict=True)
        }
    return Absences(**columns)


def _file_functions(raw: RawProcess, reads: Events) -> tuple[list[Function], Ints]:
    named: dict[tuple[int, int], tuple[Function, int]] = {}
    found: list[Function] = []
    kinds: list[int] = []
    for what, device in zip(reads["what"].tolist(), reads["aux"].tolist(), strict=True):
        if (what, device) not in named:
            operation, action = (
                files.OPERATIONS[what & 0xFF] if what & 0xFF < len(files.OPERATIONS) else ("file", "file")
            )
            other = _OTHER_FILE_KINDS.get(what >> 8)
            if other is not None:
                kind, name, line_kind = other
                named[what, device] = Function(kind, name, detail=operation), line_kind
            else:
                where = raw.devices.get(device, "device {}:{}".format(*files.device_numbers(device)))
                name = "fsync" if action == "sync" else action
                named[what, device] = Function("io", name, detail=where, resource="disk"), timeline.IO
        function, line_kind = named[what, device]
        found.append(function)
        kinds.append(line_kind)
    return found, np.array(kinds, dtype=np.int64)


def _collectives(raw: RawProcess, calls: Events, table: Sequence[CallRow], steps: Steps) -> tuple[dict[str, Any], ...]:
    """Stays, oldest first. Where there are too many, whole steps are left out evenly."""
    own = calls[np.array([row.role == "collective" for row in table])[calls["what"]]]
    start = _seconds(raw, own["ts_ns"])
    inside = (start >= 0) & (start < raw.window_s)
    own, start = own[inside], start[inside]
    step = steps.index(start)
    stride = max(-(-len(own) // MAX_COLLECTIVES), 1)
    rows, slot, previous = [], 0, -2
    for sequence, (call, index) in enumerate(zip(own, step.tolist(), strict=True)):
        slot = slot + 1 if index == previous else 0
        previous = index
        if (index if index >= 0 else sequence) % stride:
            continue
        rows.append(
            {
                "sequence": sequence,
                "step": index,
                "slot": slot,
                "op": table[int(call["what"])].name,
                "stay_s": float(call["dur_ns"]) / 1e9,
                "bytes": collectives.call_bytes(table[int(call["what"])], int(call["arg"]), int(call["aux"])),
            }
        )
    return tuple(rows)
