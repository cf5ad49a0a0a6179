"""Turn one thread's events into its timeline, its samples, and words for both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rankscope.observer.gpu.levels import Shares
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.tables.files import file_functions
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.thread import gil, syscalls, timeline
from rankscope.observer.thread.device_calls import DeviceCalls, device_calls, of_roles
from rankscope.observer.thread.functions import NO_STACK, FunctionKey
from rankscope.observer.thread.samples import Samples, Words
from rankscope.observer.thread.timeline import Absences, Carried, Scopes, Timeline
from rankscope.probes.base.arrays import Bools, Floats, Ints
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.row import CallRow
from rankscope.probes.sched.probe import WAKER_SHIFT

# Python's own locks and queues: a thread in them waits for another Python thread or a loader, not
# for a library.
_PYTHON_LOCKS = ("/threading.py", "/queue.py", "/multiprocessing/queues.py", "/multiprocessing/synchronize.py")


def thread_line(
    raw: RawProcess, calls: Events, table: Sequence[CallRow], tid: int, steps: FoundSteps, gpu: Shares | None = None,
    *, is_training: bool = False,
) -> tuple[Timeline, Absences, Samples, Words]:  # fmt: skip
    """Build timeline, absences, samples and words of one thread.

    `calls`: library calls of the process; `gpu`: its shares, at whose edges the timeline is cut.
    `is_training`: the rank's work depends on this thread, so its waits for library threads count.
    """
    mine = raw.of_thread(tid)
    absences, samples = _absences(raw, mine, tid), _samples(raw, mine)
    waits, rows = _collective_calls(raw, calls, table, tid)
    carried, carried_rows = _carried(raw, table, absences, len(rows)) if is_training else (None, rows[:0])
    rows = np.concatenate((rows, carried_rows))
    reads = mine[mine["type"] == ring.FILE]
    functions, file_kinds = file_functions(reads, raw.devices)
    still = [(row, since) for thread, row, since in raw.open_calls if thread == tid]
    device = device_calls(calls[calls["tid"] == tid], table, raw.start_ns, raw.window_s, still)
    collections = _collections(raw, mine, table, tid)
    read_start, known_until_s = raw.since_start_s(reads["ts_ns"]), _known_until_s(raw, mine, tid)
    del mine  # of a million events, before the timeline is made of them
    line = timeline.build(
        known_until_s,
        absences,
        waits,
        Scopes(read_start, read_start + reads["dur_ns"] / 1e9, np.arange(len(reads))),
        file_kinds=file_kinds,
        edges_s=steps.edge_s if gpu is None else np.concatenate((steps.edge_s, gpu.start_s, gpu.end_s)),
        # Queueing threads count inside collectives only. Otherwise it would cut each of many
        # threads into pieces at each wait of the others.
        queued=raw.once("queued", lambda: _queued(raw)) if is_training or len(waits.start_s) else None,
        carried=carried,
        collections=collections,
        device=device.scopes,
        device_kinds=device.kinds,
        known_from_s=_known_from_s(raw, absences, samples, (waits, collections, device.scopes)),
    )
    if raw.untimed and tid == raw.pid:
        samples = _spread(raw.untimed, line)
    files = (functions, np.maximum(reads["arg"], 0))
    collectives = [table[row] for row in rows]
    return line, absences, samples, _words(raw, absences, tid, collectives, files, device, steps)


def _words(
    raw: RawProcess, absences: Absences, tid: int, collectives: Sequence[CallRow],
    files: tuple[Sequence[FunctionKey], Ints], device: DeviceCalls, steps: FoundSteps,
) -> Words:  # fmt: skip
    """Collect the names and bytes of what the timeline's numbers refer to.

    `collectives`: row of the table of each collective scope; `files`: function and bytes of each
    file call.
    """
    return Words(
        raw.stacks,
        collective=[FunctionKey("collective", row.name, detail=row.family, resource="nic") for row in collectives],
        file=files[0],
        file_bytes=files[1],
        collective_bytes=np.zeros(len(collectives), dtype=np.int64),
        gil=gil.held_by(absences, raw.stacks, raw.thread_states, raw.thread_names, lambda other: _track(raw, other)),
        native=raw.native,
        device=device.functions,
        device_bytes=device.bytes,
        targets=_targets(raw, absences, tid, steps),
    )


def _targets(raw: RawProcess, absences: Absences, tid: int, steps: FoundSteps) -> dict[int, str]:
    """Return {index of an absence: what it waits for}, where known, for absences of at least half of the window.

    Shorter ones are merged. Without steps all count: a trickling download wakes the thread again
    and again.
    """
    long = absences.end_s - np.maximum(absences.start_s, 0.0) >= 0.5 * raw.window_s
    wanted = range(len(long)) if not steps.count else np.flatnonzero(long).tolist()
    found = {}
    for at in wanted if raw.targets else ():
        target = raw.targets.get((tid, int(absences.syscall[at]), int(absences.argument[at])))
        if target:
            found[at] = target
    return found


def _samples(raw: RawProcess, mine: Events) -> Samples:
    """Return the samples of a running thread: times, Python stacks, native instruction pointers; `mine`: its events."""
    sampled = mine[mine["type"] == ring.SAMPLE]
    return Samples(raw.since_start_s(sampled["ts_ns"]), sampled["stack"], sampled["arg"].astype(np.uint64))


def _known_from_s(raw: RawProcess, absences: Absences, samples: Samples, scopes: Sequence[Scopes]) -> float:
    """Return when the thread first appears, in seconds since the window's start, at least 0; the window's end if never.

    `scopes`: its calls.
    """
    begins = (absences.start_s, samples.time_s, *(each.start_s for each in scopes))
    first = min((float(x[0]) for x in begins if len(x)), default=raw.window_s)
    return min(max(first, 0.0), raw.window_s)


def _known_until_s(raw: RawProcess, mine: Events, tid: int) -> float:
    """Return until when the thread is known (s): the window's end, or if it ended before, its last event.

    `mine`: its events.
    """
    if not raw.alive_tids or tid in raw.alive_tids or tid in raw.open_absences or not len(mine):
        return raw.window_s
    return min(float((raw.since_start_s(mine["ts_ns"]) + mine["dur_ns"] / 1e9).max()), raw.window_s)


def _collective_calls(raw: RawProcess, calls: Events, table: Sequence[CallRow], tid: int) -> tuple[Scopes, Ints]:
    """Return the thread's calls that wait for or run a collective, including one in progress; and
    their rows in `table`.
    """
    waits = calls[(calls["tid"] == tid) & of_roles(calls, table, "wait", "collective")]
    start = raw.since_start_s(waits["ts_ns"])
    end = start + waits["dur_ns"] / 1e9
    rows = waits["what"].astype(np.int64)
    for thread, row, since in raw.open_calls:
        if thread == tid and table[row].role in ("wait", "collective"):
            start = np.append(start, max((since - raw.start_ns) / 1e9, 0.0))
            end = np.append(end, raw.window_s)
            rows = np.append(rows, row)
    return Scopes(start, end, np.arange(len(start))), rows


def _carried(raw: RawProcess, table: Sequence[CallRow], absences: Absences, first_label: int) -> tuple[Carried, Ints]:
    """Return when threads of libraries were inside collectives, and for each stretch its first call's row in `table`.

    The stretches are disjoint and labelled from `first_label` on. These threads have no Python
    state; `absences`: the training thread's, of which it is marked which can be waits for them.
    """
    calls = raw.events[raw.events["type"] == ring.CALL]
    calls = calls[carried_calls(raw, calls, table)]
    start = raw.since_start_s(calls["ts_ns"])
    end = start + calls["dur_ns"] / 1e9
    rows = calls["what"].astype(np.int64)
    chosen = _carried_rows(raw, table)
    for thread, row, since in raw.open_calls:
        if chosen[row] and thread not in raw.python_tids:
            start, end = np.append(start, max((since - raw.start_ns) / 1e9, 0.0)), np.append(end, raw.window_s)
            rows = np.append(rows, row)
    order = np.argsort(start, kind="stable")
    begin, until = timeline.union(Scopes(start, end, rows))
    rows = rows[order][np.searchsorted(start[order], begin)] if len(begin) else rows
    labels = first_label + np.arange(len(begin))
    asleep = _asleep(raw)
    coming = np.minimum(np.searchsorted(begin, asleep.start_s), len(begin) - 1)
    asleep = replace(asleep, label=labels[coming]) if len(begin) else timeline.NO_SCOPES
    return Carried(Scopes(begin, until, labels), _waits_for_library(raw, absences), asleep), rows


def _asleep(raw: RawProcess) -> Scopes:
    """Return when all threads of the process slept until a library's thread was woken; all labels 0.

    Times in which a Python thread slept by its own will or waited for a disk are left out: such a
    wait is the rank's own work.
    """
    events = raw.events[raw.events["type"] == ring.IDLE]
    events = events[~np.isin(events["arg"], list(raw.python_tids))]
    start = raw.since_start_s(events["ts_ns"])
    end = start + events["dur_ns"] / 1e9
    away = [_absences(raw, raw.of_thread(tid), tid) for tid in raw.python_tids] if len(events) else []
    own = [np.isin(timeline.blocked_kinds(one), (timeline.SLEEP, timeline.IO)) for one in away]
    begin, until = timeline.union(
        Scopes(
            np.concatenate([[], *(one.start_s[kept] for one, kept in zip(away, own, strict=True))]),
            np.concatenate([[], *(one.end_s[kept] for one, kept in zip(away, own, strict=True))]),
            np.empty(0, dtype=np.int64),
        )
    )
    free = np.searchsorted(until, start, side="right") == np.searchsorted(begin, end, side="left")
    return Scopes(start[free], end[free], np.zeros(int(free.sum()), dtype=np.int64))


def carried_calls(raw: RawProcess, calls: Events, table: Sequence[CallRow]) -> Bools:
    """Tell which calls are collectives that threads without Python state run for the training
    thread.
    """
    carried: Bools = _carried_rows(raw, table)[calls["what"]] & ~np.isin(calls["tid"], list(raw.python_tids))
    return carried


def _carried_rows(raw: RawProcess, table: Sequence[CallRow]) -> Bools:
    """Return a mask of `table`: collectives, except families of which this process also made timed waits.

    There the wait defines who waits and when (torch passes its collectives to such threads and goes
    on working).
    """
    calls = raw.events[raw.events["type"] == ring.CALL]
    waits = calls[of_roles(calls, table, "wait")]["what"].tolist()
    waits += [row for _, row, _ in raw.open_calls if table[row].role == "wait"]
    timed = {table[row].family for row in waits}
    return np.array([row.role == "collective" and row.family not in timed for row in table])


def _waits_for_library(raw: RawProcess, absences: Absences) -> Bools:
    """Tell which absences can be waits for a library's thread: another thread ends them, and not in
    Python's own locks.
    """
    waiting: Bools = np.isin(absences.syscall, list(syscalls.THREAD_CALLS))
    stacks, which = np.unique(absences.stack, return_inverse=True)
    locks = [raw.stacks.get(stack, NO_STACK).file.endswith(_PYTHON_LOCKS) for stack in stacks.tolist()]
    waiting &= ~np.array(locks, bool)[which.reshape(-1)]
    return waiting


def absences_at(raw: RawProcess, tid: int, time_s: Floats) -> tuple[Ints, npt.NDArray[np.uint64]]:
    """Return the absence of a thread at each time, numbered from 1 (0: on a CPU), and its stack.

    The stack is 0 unless the thread waits for library threads.
    """
    absences = _absences(raw, raw.of_thread(tid), tid)
    if not len(absences.start_s):
        return np.zeros(len(time_s), dtype=np.int64), np.zeros(len(time_s), dtype=np.uint64)
    at = np.searchsorted(absences.start_s, time_s, side="right") - 1
    inside = (at >= 0) & (time_s <= absences.end_s[at])
    waits = inside & _waits_for_library(raw, absences)[at]
    return np.where(inside, at + 1, 0), np.where(waits, absences.stack[at], 0).astype(np.uint64)


def _track(raw: RawProcess, tid: int) -> tuple[Samples, Absences]:
    """Return the samples and the absences of one thread."""
    mine = raw.of_thread(tid)
    return _samples(raw, mine), _absences(raw, mine, tid)


def _collections(raw: RawProcess, mine: Events, table: Sequence[CallRow], tid: int) -> Scopes:
    """Return the garbage collections of one thread, including one in progress at the end."""
    calls = mine[mine["type"] == ring.CALL]
    calls = calls[of_roles(calls, table, "gc")]
    start = raw.since_start_s(calls["ts_ns"])
    end = start + calls["dur_ns"] / 1e9
    still = [since for thread, row, since in raw.open_calls if thread == tid and table[row].role == "gc"]
    start = np.append(start, [(since - raw.start_ns) / 1e9 for since in still])
    end = np.append(end, [raw.window_s] * len(still))
    return Scopes(start, end, np.zeros(len(start), dtype=np.int64))


def _spread(untimed: Sequence[tuple[int, int]], line: Timeline) -> Samples:
    """Spread samples without times evenly over the thread's running time, in mixed order.

    `untimed`: (stack, number of samples). Right in sum, not within a step.
    """
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
    """Return when threads without Python state, which run the collectives, were in the run queue."""
    away = raw.events[(raw.events["type"] == ring.OFFCPU) & (raw.events["ready_ns"] > 0)]
    away = away[~np.isin(away["tid"], list(raw.python_tids))]
    end = raw.since_start_s(away["ts_ns"]) + away["dur_ns"] / 1e9
    return Scopes(end - away["ready_ns"] / 1e9, end, np.zeros(len(away), dtype=np.int64))


def _absences(raw: RawProcess, mine: Events, tid: int) -> Absences:
    """Return the thread's times off the CPU, including one in progress at the end."""
    away = mine[mine["type"] == ring.OFFCPU]
    away = away[np.argsort(away["ts_ns"], kind="stable")]
    start = raw.since_start_s(away["ts_ns"])
    columns = {
        "start_s": start,
        "end_s": start + away["dur_ns"] / 1e9,
        "ready_s": away["ready_ns"] / 1e9,
        "syscall": away["what"].astype(np.int64),
        "argument": away["arg"].astype(np.int64),
        "state": away["aux"].astype(np.int64) & ((1 << WAKER_SHIFT) - 1),
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
