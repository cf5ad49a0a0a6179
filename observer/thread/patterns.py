"""From a thread's timeline to patterns: for each function (β, μ, σ) with count, tails and seconds per step.

Definitions, for a function f on one thread in a window of W seconds with steps 1…n:

  total   T_f = Σ durations of its activities. What a thread waits in is measured to the microsecond. Running time is exact
          as a whole (between switch-in and switch-out) and shared out by samples: T_f = T_cpu · N_f / N, unbiased whatever
          the length of the function, with a relative error of 1/√N_f.
  β       T_f / W for the training thread (its timeline is the critical path where no GPU is seen), 0 for other threads
  μ, σ    of the utilisation of f's resource. For CPU, per step k: u_k = cpu_fk / (cpu_fk + ready_fk), the share of its
          running time it was given; μ = Σ cpu / Σ (cpu + ready), σ = standard deviation of u_k. A sleeping function: 0.
  p50…    over activities: for running functions, runs of consecutive samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from rankscope.observer.thread import functions, timeline
from rankscope.observer.thread.functions import NO_STACK, Function, StackName
from rankscope.observer.thread.steps import Steps
from rankscope.observer.thread.timeline import Absences, Timeline
from rankscope.probes.arrays import Floats, Ints

MIN_SHARE = 0.0005  # stacks below this share of the window are told apart by their leaf only
_GIL_GAP_S = 0.001  # between two looks at the GIL that belong to one wait
_RUN_GAP = 2.5  # samples further apart than this many periods of running time are two activities


@dataclass(frozen=True, slots=True)
class Samples:
    """Moments at which the thread was found running, in order."""

    time_s: Floats
    stack: npt.NDArray[np.uint64]
    native: npt.NDArray[np.uint64] | None = None  # user instruction pointers, where they are known


@dataclass(frozen=True, slots=True)
class Pattern:
    """One row of the pattern table, less rank and thread."""

    function: Function
    beta: float
    mu: float | None
    sigma: float | None
    count: int
    total_s: float
    p50_s: float
    p99_s: float
    max_s: float
    per_step_s: float | None
    per_step_sd_s: float | None
    bytes: int
    native: str = ""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Per complete step: durations by class, each an array of n steps."""

    start_s: Floats
    seconds: Floats
    own_s: Floats
    wait_s: Floats
    io_s: Floats
    sched_s: Floats
    sync_s: Floats


@dataclass(frozen=True, slots=True)
class Labels:
    """Words for the numbers in a timeline: stacks by id, collective and file scopes by their position."""

    stacks: Mapping[int, StackName]
    collective: Sequence[Function]  # by scope position
    file: Sequence[Function]
    file_bytes: Ints
    collective_bytes: Ints
    gil: Mapping[tuple[str, str, int], str] = field(default_factory=dict)  # waiting function -> who held the GIL
    native: Mapping[int, str] = field(default_factory=dict)  # instruction pointer -> native function
    device: Sequence[Function] = ()  # waits for the GPU, copies
    device_bytes: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def stack(self, identity: int) -> StackName:
        """NO_STACK where it was lost."""
        return self.stacks.get(identity, NO_STACK)


@dataclass(slots=True)
class _Row:
    durations: list[Floats]
    steps: list[Ints]
    bytes: int = 0
    native: Counter[str] = field(default_factory=Counter)


def step_times(line: Timeline, steps: Steps) -> StepTimes:
    """The classes of DESIGN.md summed over each complete step."""
    at = steps.index((line.start_s + line.end_s) / 2)
    inside = at >= 0

    def total(*kinds: int) -> Floats:
        chosen = inside & np.isin(line.kind, kinds)
        sums: Floats = np.bincount(at[chosen], line.seconds[chosen], minlength=steps.count)[: steps.count].astype(
            np.float64
        )
        return sums

    seconds = np.diff(steps.edge_s) if steps.count else np.empty(0)
    # Where GPU activity is seen, a wait for the GPU counts only while that stands idle: then nobody else is waited for.
    wait = total(timeline.COLLECTIVE, *((timeline.GPU_WAIT,) if line.share is None else ()))
    return StepTimes(
        steps.edge_s[:-1], seconds, np.maximum(seconds - wait, 0), wait,
        total(timeline.IO), total(timeline.SCHED), total(timeline.SYNC),
    )  # fmt: skip


def patterns(
    window_s: float,
    line: Timeline,
    absences: Absences,
    samples: Samples,
    labels: Labels,
    steps: Steps,
    *,
    hz: float,
    throttled_s: float = 0.0,
    on_critical_path: bool = True,
) -> tuple[Pattern, ...]:
    """All patterns of one thread, largest first. `throttled_s`: how long the CPU quota held the rank back."""
    rows: dict[Function, _Row] = {}
    _add_waits(rows, line, absences, samples, labels, steps, hz, throttled_s)
    cpu_s = float(line.seconds[line.kind == timeline.CPU].sum())
    _add_running(rows, line, samples, labels, steps, cpu_s, hz)
    _merge_small(rows, window_s * MIN_SHARE)
    cpu_by_leaf, ready_by_leaf = _cpu_and_ready(rows, steps.count)
    found = [
        _measure(function, row, steps.count, window_s if on_critical_path else None, cpu_by_leaf, ready_by_leaf)
        for function, row in rows.items()
    ]
    return tuple(sorted(found, key=lambda pattern: -pattern.total_s))


def _add_waits(
    rows: dict[Function, _Row],
    line: Timeline,
    absences: Absences,
    samples: Samples,
    labels: Labels,
    steps: Steps,
    hz: float,
    throttled_s: float,
) -> None:
    wanted = np.flatnonzero((line.kind != timeline.CPU) & (line.seconds > 0))
    if not len(wanted):
        return
    throttled = _throttled(line, throttled_s)
    stack_of_file = _scope_stacks(line.file, line, absences, samples)
    stack_of_collective = _scope_stacks(line.collective, line, absences, samples)
    stack_of_collection = _scope_stacks(line.gc, line, absences, samples)
    stack_of_device = _scope_stacks(line.device, line, absences, samples)
    _nearest_stacks(stack_of_collection, line, samples, 2 / hz)
    turn = _gil_turns(absences)
    step = steps.index((line.start_s + line.end_s) / 2)
    # Segments of one absence or scope that have the same name are one activity.
    groups: dict[tuple[Function, int, int], list[int]] = {}
    for segment in wanted:
        kind, away = int(line.kind[segment]), int(line.absence[segment])
        file, collective = int(line.file[segment]), int(line.collective[segment])
        stack = labels.stack(int(absences.stack[away])) if away >= 0 else NO_STACK
        source, identity = 0, away
        if kind == timeline.SCHED:
            function = functions.waiting("sched", "ready", "throttled" if throttled[segment] else "queue", stack, "cpu")
        elif kind == timeline.STOPPED:
            function = functions.waiting("sched", "stopped", "job control", stack, "cpu")
        elif kind == timeline.COLLECTIVE:
            source, identity = 1, collective
            stack = labels.stack(stack_of_collective.get(collective, 0))
            function = _called_from(labels.collective[collective], stack)
        elif kind in (timeline.GPU_WAIT, timeline.COPY):
            source, identity = 5, int(line.device[segment])
            function = _called_from(labels.device[identity], labels.stack(stack_of_device.get(identity, 0)))
        elif kind == timeline.GC:
            source, identity = 3, int(line.gc[segment])
            function = functions.collector(labels.stack(stack_of_collection.get(identity, 0)))
        elif file >= 0:
            source, identity = 2, file
            function = _called_from(labels.file[file], labels.stack(stack_of_file.get(file, 0)))
        elif kind == timeline.SLEEP:
            function = functions.python(stack, "sleep")
        else:
            what = (
                timeline.reason(int(absences.syscall[away]), int(absences.argument[away])) if away >= 0 else "unknown"
            )
            detail = ""
            if away >= 0 and absences.syscall[away] == timeline.GIL:
                source, identity = 4, int(turn[away])
                detail = labels.gil.get((stack.name, stack.file, stack.line), "")
            function = functions.waiting("io" if kind == timeline.IO else "sync", what, detail, stack)
        groups.setdefault((function, source, identity), []).append(int(segment))
    nothing = np.empty(0)
    moved = (nothing, labels.collective_bytes, labels.file_bytes, nothing, nothing, labels.device_bytes)
    for (function, source, identity), segments in groups.items():
        row = rows.setdefault(function, _Row([], []))
        row.durations.append(np.array([line.seconds[segments].sum()]))
        row.steps.append(step[segments[:1]])
        if source and len(moved[source]):
            row.bytes += max(int(moved[source][identity]), 0)


def _called_from(function: Function, stack: StackName) -> Function:
    return replace(function, file=stack.file, line=stack.line, caller=stack.name, stack=stack.text)


def _scope_stacks(scope: Ints, line: Timeline, absences: Absences, samples: Samples) -> dict[int, int]:
    """A stack for each scope: that of the first absence or, failing that, the first sample inside it."""
    found: dict[int, int] = {}
    inside = np.flatnonzero((scope >= 0) & (line.absence >= 0))
    for segment in inside:
        found.setdefault(int(scope[segment]), int(absences.stack[line.absence[segment]]))
    if len(line.start_s):
        at = np.clip(np.searchsorted(line.start_s, samples.time_s, side="right") - 1, 0, None)
        for sample in np.flatnonzero(scope[at] >= 0):
            found.setdefault(int(scope[at[sample]]), int(samples.stack[sample]))
    return found


def _nearest_stacks(found: dict[int, int], line: Timeline, samples: Samples, within_s: float) -> None:
    """For collections too short to hold a sample: the stack of the nearest one, if there is one `within_s`."""
    if not len(samples.time_s):
        return
    for segment in np.flatnonzero(line.gc >= 0):
        if int(line.gc[segment]) not in found:
            middle = float(line.start_s[segment])
            after = int(np.clip(np.searchsorted(samples.time_s, middle), 1, max(len(samples.time_s) - 1, 1)))
            near = min(
                (after - 1, min(after, len(samples.time_s) - 1)), key=lambda at: abs(samples.time_s[at] - middle)
            )
            if abs(float(samples.time_s[near]) - middle) <= within_s:
                found[int(line.gc[segment])] = int(samples.stack[near])


def _gil_turns(absences: Absences) -> Ints:
    """Number of the wait that each absence is part of: who waits for the GIL looks up every 5 ms and waits on."""
    gil = absences.syscall == timeline.GIL
    goes_on = np.zeros(len(gil), dtype=bool)
    goes_on[1:] = gil[1:] & gil[:-1] & (absences.start_s[1:] - absences.end_s[:-1] < _GIL_GAP_S)
    return np.cumsum(~goes_on).astype(np.int64)


def _throttled(line: Timeline, throttled_s: float) -> npt.NDArray[np.bool_]:
    """The longest waits for the CPU, up to the time the quota is known to have taken: throttled waits are the long ones."""
    marked = np.zeros(len(line.kind), dtype=bool)
    waits = np.flatnonzero(line.kind == timeline.SCHED)
    order = waits[np.argsort(-line.lengths[waits])]
    spent = np.cumsum(line.lengths[order]) - line.lengths[order] / 2
    marked[order[spent <= throttled_s]] = True
    return marked


def _add_running(
    rows: dict[Function, _Row], line: Timeline, samples: Samples, labels: Labels, steps: Steps, cpu_s: float, hz: float
) -> None:
    if cpu_s <= 0 or not len(line.start_s):
        return
    at = np.searchsorted(line.start_s, samples.time_s, side="right") - 1
    running = (at >= 0) & (line.kind[np.maximum(at, 0)] == timeline.CPU)
    if line.share is not None:
        running &= line.share[np.maximum(at, 0)] > 0
    times, stacks = samples.time_s[running], samples.stack[running]
    if not len(times):
        row = rows.setdefault(functions.python(NO_STACK), _Row([], []))
        row.durations.append(np.array([cpu_s]))
        row.steps.append(np.array([-1]))
        return
    shares = np.ones(len(times)) if line.share is None else line.share[at[running]]
    weight = cpu_s / float(shares.sum())
    distinct, which = np.unique(stacks, return_inverse=True)
    named = [functions.python(labels.stack(int(identity))) for identity in distinct]
    numbers: dict[Function, int] = {}
    row_of_stack = np.array([numbers.setdefault(function, len(numbers)) for function in named])
    row_of_sample = row_of_stack[which]
    step = steps.index(times)
    new_run = np.ones(len(times), dtype=bool)
    new_run[1:] = (np.diff(row_of_sample) != 0) | (np.diff(times) > _RUN_GAP / hz) | (np.diff(step) != 0)
    run = np.cumsum(new_run) - 1
    lengths = np.bincount(run, shares) * weight
    first = np.flatnonzero(new_run)
    natives = _natives(samples, running, labels)
    for function, number in numbers.items():
        mine = row_of_sample[first] == number
        row = rows.setdefault(function, _Row([], []))
        row.durations.append(lengths[mine])
        row.steps.append(step[first[mine]])
        row.native.update(natives[row_of_sample == number].tolist())


def _natives(samples: Samples, running: npt.NDArray[np.bool_], labels: Labels) -> npt.NDArray[np.object_]:
    """The native function of each running sample, '' where it is not known."""
    if samples.native is None:
        return np.full(int(running.sum()), "", dtype=object)
    places, which = np.unique(samples.native[running], return_inverse=True)
    return np.array([labels.native.get(int(place), "") for place in places] or [""], dtype=object)[which]


def _merge_small(rows: dict[Function, _Row], least_s: float) -> None:
    for function in [f for f, row in rows.items() if f.stack and sum(float(d.sum()) for d in row.durations) < least_s]:
        row = rows.pop(function)
        into = rows.setdefault(function.without_stack(), _Row([], []))
        into.durations += row.durations
        into.steps += row.steps
        into.bytes += row.bytes
        into.native += row.native


def _per_step(row: _Row, count: int) -> Floats:
    steps, durations = np.concatenate(row.steps), np.concatenate(row.durations)
    inside = steps >= 0
    sums: Floats = np.bincount(steps[inside], durations[inside], minlength=count)[:count].astype(np.float64)
    return sums


_Leaf = tuple[str, str, int]


def _cpu_and_ready(rows: Mapping[Function, _Row], count: int) -> tuple[dict[_Leaf, Floats], dict[_Leaf, Floats]]:
    cpu: dict[_Leaf, Floats] = {}
    ready: dict[_Leaf, Floats] = {}
    for function, row in rows.items():
        if function.kind == "python" and not function.detail:
            key, into = (function.name, function.file, function.line), cpu
        elif function.kind == "sched" and function.name == "ready":
            key, into = (function.caller, function.file, function.line), ready
        else:
            continue
        series = np.append(_per_step(row, count), sum(float(d.sum()) for d in row.durations))
        into[key] = into.get(key, np.zeros(count + 1)) + series
    return cpu, ready


def _measure(
    function: Function,
    row: _Row,
    count: int,
    critical_window_s: float | None,
    cpu: Mapping[_Leaf, Floats],
    ready: Mapping[_Leaf, Floats],
) -> Pattern:
    durations = np.concatenate(row.durations)
    total = float(durations.sum())
    per_step = _per_step(row, count) if count else None
    mu = sigma = None
    if function.kind == "python":
        mu, sigma = 0.0, 0.0
        if function.detail == "gc":
            mu = 1.0
        elif not function.detail:
            mu, sigma = _cpu_utilisation((function.name, function.file, function.line), cpu, ready)
    return Pattern(
        function,
        beta=total / critical_window_s if critical_window_s else 0.0,
        mu=mu,
        sigma=sigma,
        count=len(durations),
        total_s=total,
        p50_s=float(np.quantile(durations, 0.5)),
        p99_s=float(np.quantile(durations, 0.99)),
        max_s=float(durations.max()),
        per_step_s=float(per_step.mean()) if per_step is not None else None,
        per_step_sd_s=float(per_step.std()) if per_step is not None else None,
        bytes=row.bytes,
        native=row.native.most_common(1)[0][0] if row.native else "",
    )


def _cpu_utilisation(leaf: _Leaf, cpu: Mapping[_Leaf, Floats], ready: Mapping[_Leaf, Floats]) -> tuple[float, float]:
    ran = cpu.get(leaf, np.zeros(1))
    waited = ready.get(leaf, np.zeros(len(ran)))
    mu = float(ran[-1] / (ran[-1] + waited[-1])) if ran[-1] + waited[-1] > 0 else 1.0
    both = ran[:-1] + waited[:-1]
    shares = ran[:-1][both > 0] / both[both > 0]
    return mu, float(shares.std()) if len(shares) else 0.0
