"""Threads of a rank beside the one that trains: what is measured of them, and until when."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.tables.rank import side_patterns
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.tables.thread_line import thread_line
from rankscope.observer.thread.functions import StackName
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE, UPDATE

START_NS, MAIN, READER = 1_000_000_000, 10, 11
CLOCK_NANOSLEEP, INTERRUPTIBLE = 230, 1
STACKS = {1: StackName("read", "data.py", 3), 2: StackName("parse", "data.py", 9)}


def event(kind: int, at_s: float, seconds: float, stack: int) -> ring.Events:
    one = np.zeros(1, dtype=ring.EVENT)
    one["type"], one["tid"], one["tgid"], one["stack"], one["aux"] = kind, READER, MAIN, stack, INTERRUPTIBLE
    one["what"] = CLOCK_NANOSLEEP if kind == ring.OFFCPU else 0
    one["ts_ns"], one["dur_ns"] = START_NS + round(at_s * 1e9), round(seconds * 1e9)
    return one


def seconds_of(alive: frozenset[int]) -> dict[str, float]:
    """By function, of a thread that is heard of from 1 s to 4 s of 10: it sleeps two seconds, and runs before and after."""
    events = [event(ring.SAMPLE, 1.0, 0, 2), event(ring.OFFCPU, 1.5, 2.0, 1), event(ring.SAMPLE, 4.0, 0, 2)]
    tids = frozenset({MAIN, READER})
    raw = RawProcess(
        MAIN, START_NS, 10.0, np.concatenate(events), {}, (), tids, STACKS, {}, 0.0, 99.0, alive_tids=alive
    )
    found = side_patterns(raw, CALL_TABLE, FoundSteps(np.empty(0), 0), [READER])
    return {one.function.name: one.total_s for one in found}


def test_a_thread_that_ended_ran_until_it_was_last_heard_of() -> None:
    assert seconds_of(frozenset({MAIN})) == {"read": pytest.approx(2.0), "parse": pytest.approx(1.0)}


def test_a_thread_that_is_there_at_the_end_runs_until_then() -> None:
    assert seconds_of(frozenset({MAIN, READER})) == {"read": pytest.approx(2.0), "parse": pytest.approx(7.0)}


@pytest.mark.parametrize(("in_collective", "pieces"), [(False, 2), (True, 202)])
def test_waits_of_other_threads_for_a_cpu_cut_what_is_inside_a_collective_alone(
    in_collective: bool, pieces: int
) -> None:
    """A rank may have hundreds of such threads, and its libraries' threads may queue ten thousand times each second."""
    queued = np.concatenate([event(ring.OFFCPU, 1.0 + number * 0.01, 0.005, 0) for number in range(100)])
    queued["tid"], queued["ready_ns"] = MAIN + 90, 4_000_000
    row = next(index for index, row in enumerate(CALL_TABLE) if row.name == UPDATE)
    call = event(ring.CALL, 0.5, 9.0, 0)
    call["what"] = row
    calls = call if in_collective else call[:0]
    raw = RawProcess(
        MAIN, START_NS, 10.0, np.concatenate((event(ring.OFFCPU, 0.5, 9.0, 1), queued, calls)), {}, (),
        frozenset({MAIN, READER}), STACKS, {}, 0.0, 99.0, alive_tids=frozenset({MAIN, READER}),
    )  # fmt: skip
    line = thread_line(raw, calls, CALL_TABLE, READER, FoundSteps(np.empty(0), 0))[0]
    assert len(line.kind) == pieces
