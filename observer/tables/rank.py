"""Determine what one rank did in a window from the probes' data: pure, no I/O.

events → markers → steps; events of the training thread → timeline → patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.observer.gpu import overlay, own_waits
from rankscope.observer.gpu import rows as gpu_rows
from rankscope.observer.gpu.launched import launch_patterns
from rankscope.observer.gpu.overlay import GpuTime
from rankscope.observer.gpu.waited import wait_patterns
from rankscope.observer.steps.find import StepGuide, find_steps
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.steps.markers import Markers
from rankscope.observer.tables import driver_spin
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.tables.thread_line import absences_at, carried_calls, thread_line
from rankscope.observer.tables.training_thread import training_thread
from rankscope.observer.thread import patterns, timeline
from rankscope.observer.thread.device_calls import EXCHANGE_ROLES, MARKER_ROLES, of_roles
from rankscope.observer.thread.functions import NO_STACK, StackName
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.observer.thread.pauses import Pause, find_pauses
from rankscope.observer.thread.step_times import StepTimes, step_times
from rankscope.probes.base.arrays import Floats
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.row import BACKWARD, DISPATCH, ENQUEUE, GPU_WAIT, CallRow
from rankscope.probes.calls.table import UPDATE

_C10D = "torch/distributed/distributed_c10d.py"


@dataclass(frozen=True, slots=True)
class RankWindow:
    """Results for one rank in a window."""

    training_thread: int
    steps: FoundSteps
    step_times: StepTimes
    training: tuple[MeasuredPattern, ...]
    others: tuple[MeasuredPattern, ...]
    calls: Events  # library calls, in order
    stopped_s: float
    last_progress_s: float | None
    in_collective_s: float
    gpu: GpuTime | None = None
    pauses: tuple[Pause, ...] = ()
    on_gpu: tuple[MeasuredPattern, ...] = ()  # its GPU functions, and where it waits for them


def steps_alone(raw: RawProcess, table: Sequence[CallRow]) -> FoundSteps:
    """Find the steps of this rank without knowledge of others."""
    calls = _calls(raw, table)
    return find_steps(_markers(raw, calls, table, training_thread(raw, calls, table), StepGuide()))


def _calls(raw: RawProcess, table: Sequence[CallRow]) -> Events:
    """Return the library calls of all threads in order of begin, without garbage collections."""
    calls = raw.events[raw.events["type"] == ring.CALL]
    calls = calls[~of_roles(calls, table, "gc")]
    ordered: Events = calls[np.argsort(calls["ts_ns"], kind="stable")]
    return ordered


def find_rank(raw: RawProcess, table: Sequence[CallRow], guide: StepGuide | None = None) -> RankWindow:
    """Determine what one rank did. A thread without any event yields no pattern, a rank without
    markers no steps.

    `guide`: step parameters from the job's other ranks.
    """
    calls = _calls(raw, table)
    tid = training_thread(raw, calls, table)
    steps = find_steps(_markers(raw, calls, table, tid, guide or StepGuide()), guide)
    shares = raw.gpu.shares if raw.gpu else None
    line, absences, samples, labels = thread_line(raw, calls, table, tid, steps, shares, is_training=True)
    how = {"hz": raw.hz, "throttled_s": raw.throttled_s}
    activities = patterns.activities_of(line, absences, samples, labels, steps, **how)
    # Pauses depend on what the thread does, even while its GPU works.
    paused = find_pauses(activities, steps, raw.hz)
    gpu: GpuTime | None = None
    if raw.gpu is not None and raw.gpu.seen:
        line, labels, gpu = gpu_rows.lay_over(line, labels, raw.gpu.shares)
        activities = patterns.activities_of(line, absences, samples, labels, steps, **how)
    elif raw.gpu is None and (line.kind == timeline.GPU_WAIT).any():
        enqueued = calls[of_roles(calls, table, ENQUEUE)]["ts_ns"]
        line, labels = own_waits.mark_own_waits(line, labels, raw.since_start_s(enqueued), steps)
        activities = patterns.activities_of(line, absences, samples, labels, steps, **how)
    training = patterns.measure(raw.window_s, activities, steps)
    others = side_patterns(raw, table, steps, raw.python_tids - {tid})
    times = step_times(line, steps)
    if raw.gpu is not None and gpu is None:
        times = overlay.unmeasured(times)
    if raw.gpu is not None and gpu is not None:
        training, times = gpu_rows.add_gpu(training, times, line, gpu, raw.gpu, steps, raw.window_s)
    last = _last_marker_ns(calls, table)
    end_ns = raw.start_ns + raw.window_s * 1e9
    return RankWindow(
        tid, steps, times, training, others, calls,
        stopped_s=float(line.lengths[line.kind == timeline.STOPPED].sum()),
        last_progress_s=None if last is None else max((end_ns - last) / 1e9, 0.0),
        in_collective_s=_in_collective_s(raw, table, tid),
        gpu=gpu,
        pauses=paused,
        on_gpu=launch_patterns(raw.launches, raw.stacks, training) + _waits(raw, calls, table, tid, steps),
    )  # fmt: skip


def _waits(
    raw: RawProcess, calls: Events, table: Sequence[CallRow], tid: int, steps: FoundSteps
) -> tuple[MeasuredPattern, ...]:
    """Measure the training thread's waits for the GPU, by function and call site; empty if there are none."""
    waits = calls[of_roles(calls, table, GPU_WAIT) & (calls["tid"] == tid)]
    return wait_patterns(waits, raw.since_start_s(waits["ts_ns"]), raw.stacks, table, steps) if len(waits) else ()


def _last_marker_ns(calls: Events, table: Sequence[CallRow]) -> float | None:
    """Return when the last call that repeats with the steps ended, in ns of CLOCK_MONOTONIC; None if there is none.

    Of calls in order of begin the last 64 are compared.
    """
    markers = calls[of_roles(calls, table, *MARKER_ROLES)]
    return max((float(call["ts_ns"] + call["dur_ns"]) for call in markers[-64:]), default=None)


def _in_collective_s(raw: RawProcess, table: Sequence[CallRow], tid: int) -> float:
    """Return for how many seconds the rank has been in its current collective at the end; 0 if it is in none.

    The window's length where it entered before observation began.
    """
    since = [since for _, row, since in raw.open_calls if table[row].role in ("wait", "collective")]
    if since:
        return max((raw.start_ns + raw.window_s * 1e9 - min(since)) / 1e9, 0.0)
    away = raw.open_absences.get(tid)
    always_away = away is not None and away.since_ns <= raw.start_ns and away.state
    if away is not None and always_away and is_collective(raw.stacks.get(away.stack, NO_STACK)):
        return raw.window_s  # it entered before observation began
    return _stuck_on_gpu(raw, table, tid)


def _stuck_on_gpu(raw: RawProcess, table: Sequence[CallRow], tid: int) -> float:
    """Return the seconds that the training thread has waited for a GPU inside a collective; 0 if it
    does not.

    A thread that has been away since before the window may have entered its wait unobserved, or may
    be polling its GPU (driver_spin.py).
    """
    if spun := driver_spin.spun_s(raw, tid):
        return min(spun, raw.collective_tail_s)
    since = [since for thread, row, since in raw.open_calls if thread == tid and table[row].role == GPU_WAIT]
    away = raw.open_absences.get(tid)
    if not since and away is not None and away.since_ns <= raw.start_ns and away.state:
        since = [raw.start_ns]
    waited_s = raw.window_s - (max(min(since), raw.start_ns) - raw.start_ns) / 1e9 if since else 0.0
    return min(waited_s, raw.collective_tail_s)


def is_collective(stack: StackName) -> bool:
    """Tell whether a thread blocked with this stack waits in a collective that it entered before
    observation began.

    A collective call from Python shows its wrapper; DDP's own waits are in the backward pass, which
    has no other reason to block for a whole window.
    """
    return any(_C10D in frame.file for frame in stack.frames) or stack.name == "_engine_run_backward"


def side_patterns(
    raw: RawProcess, table: Sequence[CallRow], steps: FoundSteps, tids: Iterable[int]
) -> tuple[MeasuredPattern, ...]:
    """Measure patterns of threads off the critical path: other threads of a rank, data-loader
    workers.
    """
    found: list[MeasuredPattern] = []
    in_calls = {tid for tid, _, _ in raw.open_calls}
    for tid in sorted(tids):
        mine = raw.of_thread(tid)
        if not len(mine) and tid not in raw.open_absences and tid not in in_calls and not raw.untimed:
            continue  # nothing is known of it: as of thousands of ended workers
        calls = mine[mine["type"] == ring.CALL]
        their = thread_line(raw, calls, table, tid, steps)
        found += patterns.measure_thread(raw.window_s, *their, steps, hz=raw.hz, on_critical_path=False)
    return tuple(found)


def _markers(raw: RawProcess, calls: Events, table: Sequence[CallRow], tid: int, guide: StepGuide) -> Markers:
    """Select markers: the training thread's calls that are not inside another one; without any, all threads' calls.

    Only calls of `MARKER_ROLES`. Also selected: the training thread's waits for others inside another
    call, and collectives that a library it calls runs for it on threads without Python state (JAX
    runs only small ones in the call itself). A rank that is alone (`guide.one_rank`) may make no such
    calls at all: then its dispatches mark its steps.
    """
    handed = calls[of_roles(calls, table, DISPATCH) & (calls["tid"] == tid) & (calls["ready_ns"] > 0)]
    calls = calls[of_roles(calls, table, *MARKER_ROLES)]
    if guide.one_rank and not len(calls) and len(handed):
        return _dispatch_markers(raw, handed, table)
    own = calls["tid"] == tid
    mine = calls[own]
    if len(mine):
        ends = np.maximum.accumulate(mine["ts_ns"] + mine["dur_ns"])
        inner = np.concatenate(([False], mine["ts_ns"][1:] < ends[:-1]))
        roles = np.array([row.role for row in table])
        # A backward pass contains the wait of DDP's reducer: both are markers, but the outer one
        # alone would hide the wait.
        own[own] = ~inner | (roles[mine["what"]] == "wait")
        families = np.array([row.family for row in table])
        own |= carried_calls(raw, calls, table) & np.isin(families[calls["what"]], families[np.unique(mine["what"])])
    chosen = calls[own] if len(mine) else calls
    unmarked = calls[~own & of_roles(calls, table, *EXCHANGE_ROLES)] if len(mine) else calls[:0]
    start = raw.since_start_s(chosen["ts_ns"])
    end = start + chosen["dur_ns"].astype(np.float64) / 1e9
    # A library's thread has no call site in the job's code: use where the training thread waits for
    # it.
    absence, waits = absences_at(raw, tid, end)
    places = np.where(chosen["ready_ns"] > 0, chosen["ready_ns"], waits)
    stacks = np.unique(np.concatenate((places, handed["ready_ns"])))
    sites = {int(stack): raw.stacks.get(int(stack), NO_STACK).site for stack in stacks}
    known = [stack for stack in np.unique(chosen["ready_ns"]).tolist() if raw.stacks.get(stack, NO_STACK).path]
    made_by = np.array(known, dtype=np.uint64)
    path = np.searchsorted(made_by, chosen["ready_ns"])
    path = np.where(np.isin(chosen["ready_ns"], made_by) & (chosen["tid"] == tid), path, -1)
    return Markers(
        chosen["what"].astype(np.int64),
        start,
        end,
        level=_rows(table, lambda row: row.role == GPU_WAIT),
        update=_rows(table, lambda row: row.name == UPDATE),
        backward=_rows(table, lambda row: row.role == BACKWARD),
        site=np.array([sites[int(stack)] for stack in places], dtype=np.int64),
        optimiser_s=_in_optimiser_s(raw, tid),
        absence=np.where(chosen["tid"] == tid, 0, absence),
        path=path,
        paths=tuple(raw.stacks[int(stack)].path for stack in made_by),
        unmarked_s=raw.since_start_s(unmarked["ts_ns"]),
        dispatch_s=raw.since_start_s(handed["ts_ns"]),
        dispatch_site=np.array([sites[int(stack)] for stack in handed["ready_ns"]], dtype=np.int64),
    )


def _dispatch_markers(raw: RawProcess, handed: Events, table: Sequence[CallRow]) -> Markers:
    """Make markers of dispatches (`handed`), a symbol for each call site: a library has one function for all."""
    places, place = np.unique(handed["ready_ns"], return_inverse=True)
    stacks = [raw.stacks.get(int(stack), NO_STACK) for stack in places]
    site = np.array([stack.site for stack in stacks], dtype=np.int64)
    start = raw.since_start_s(handed["ts_ns"])
    known = [stack.path for stack in stacks if stack.path]
    path = np.cumsum([bool(stack.path) for stack in stacks]) - 1
    path = np.where([bool(stack.path) for stack in stacks], path, -1)
    place = place.reshape(-1)
    return Markers(
        len(table) + place.astype(np.int64), start, start + handed["dur_ns"] / 1e9, site=site[place],
        path=path[place].astype(np.int64), paths=tuple(known),
    )  # fmt: skip


def _rows(table: Sequence[CallRow], wanted: Callable[[CallRow], bool]) -> frozenset[int]:
    """Return the indices of the rows of `table` for which `wanted` holds."""
    return frozenset(index for index, row in enumerate(table) if wanted(row))


def _in_optimiser_s(raw: RawProcess, tid: int) -> Floats:
    """Return when the thread was sampled or switched out inside an optimiser: seconds since the start, sorted."""
    mine = raw.of_thread(tid)
    mine = mine[np.isin(mine["type"], (ring.SAMPLE, ring.OFFCPU))]
    inside = [stack for stack in np.unique(mine["stack"]).tolist() if raw.stacks.get(stack, NO_STACK).in_optimiser]
    return np.sort(raw.since_start_s(mine["ts_ns"][np.isin(mine["stack"], np.array(inside, dtype=np.uint64))]))
