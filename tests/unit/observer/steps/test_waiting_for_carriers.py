"""A training thread that waits while threads of a library carry its collectives: JAX does so, torch has a wait that is timed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.tables.thread_line import thread_line
from rankscope.observer.thread import timeline
from rankscope.observer.thread.functions import StackName
from rankscope.observer.thread.timeline import Timeline
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE

START_NS, MAIN, LIBRARY, OTHER_LIBRARY, OTHER_PYTHON = 1_000_000_000, 10, 11, 12, 13
FUTEX, POLL, SLEEP, READ, INTERRUPTIBLE = 202, 7, 230, 0, 1
STACKS = {1: StackName("train", "train.py", 3), 2: StackName("wait", "/usr/lib/python3.11/threading.py", 300)}
Span = tuple[float, float]


def row(family: str, name: str) -> int:
    return next(i for i, one in enumerate(CALL_TABLE) if (one.family, one.name) == (family, name))


XLA, GLOO, WAIT = row("xla", "allreduce"), row("gloo", "allreduce"), row("gloo", "wait")


def event(kind: int, tid: int, span: Span, what: int, stack: int = 0, ready_s: float = 0.0) -> ring.Events:
    one = np.zeros(1, dtype=ring.EVENT)
    one["type"], one["tid"], one["tgid"], one["what"], one["stack"] = kind, tid, MAIN, what, stack
    one["ts_ns"], one["dur_ns"] = START_NS + round(span[0] * 1e9), round((span[1] - span[0]) * 1e9)
    one["aux"], one["ready_ns"] = INTERRUPTIBLE, round(ready_s * 1e9)
    return one


def away(span: Span, syscall: int = FUTEX, stack: int = 1, tid: int = MAIN, ready_s: float = 0.0) -> ring.Events:
    return event(ring.OFFCPU, tid, span, syscall, stack, ready_s)


def call(span: Span, what: int = XLA, tid: int = LIBRARY) -> ring.Events:
    return event(ring.CALL, tid, span, what)


def all_slept(span: Span, until_woken: int = LIBRARY) -> ring.Events:
    one = event(ring.IDLE, 0, span, 0)
    one["arg"] = until_woken
    return one


def line_of(
    *events: ring.Events,
    is_training: bool = True,
    open_calls: Sequence[tuple[int, int, int]] = (),
    python: Sequence[int] = (),
) -> tuple[Timeline, set[str]]:
    # The first moment of the window is known, because the thread was away then.
    together = np.concatenate([away((-1.0, 0.0)), *events])
    raw = RawProcess(
        MAIN, START_NS, 10.0, together, {}, open_calls, frozenset({MAIN, *python}), STACKS, {}, 0.0, 99.0
    )  # fmt: skip
    calls = together[together["type"] == ring.CALL]
    steps = FoundSteps(np.empty(0), 0)
    line, _, _, words = thread_line(raw, calls, CALL_TABLE, MAIN, steps, is_training=is_training)
    at = line.collective[line.kind == timeline.COLLECTIVE]
    assert all(words.collective[one].kind == "collective" for one in at)
    return line, {words.collective[one].name for one in at}


def seconds(line: Timeline) -> dict[int, float]:
    return {int(kind): pytest.approx(float(line.seconds[line.kind == kind].sum())) for kind in np.unique(line.kind)}


def test_waiting_for_a_thread_that_is_in_a_collective_is_waiting_for_the_collective() -> None:
    line, names = line_of(away((2, 6)), call((3, 5)))
    assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 2, timeline.COLLECTIVE: 2}
    assert names == {"allreduce"}


def test_collectives_of_several_threads_are_waited_for_once() -> None:
    line, _ = line_of(away((1, 9)), call((2, 5)), call((4, 6), tid=OTHER_LIBRARY), call((7, 8)))
    assert seconds(line) == {timeline.CPU: 2, timeline.SYNC: 3, timeline.COLLECTIVE: 5}


def test_a_collective_in_progress_at_the_end_counts() -> None:
    line, _ = line_of(away((2, 10)), open_calls=[(LIBRARY, XLA, START_NS + 4 * 10**9)])
    assert seconds(line) == {timeline.CPU: 2, timeline.SYNC: 2, timeline.COLLECTIVE: 6}


def test_what_stands_in_the_run_queue_is_not_waiting_for_others() -> None:
    line, _ = line_of(away((2, 6), ready_s=1.0), call((2, 6)), away((3, 4), tid=LIBRARY, ready_s=1.0))
    assert seconds(line) == {timeline.CPU: 6, timeline.SCHED: 2, timeline.COLLECTIVE: 2}


def test_own_work_while_the_library_is_in_a_collective_stays_own_work() -> None:
    line, _ = line_of(call((1, 9)))
    assert seconds(line) == {timeline.CPU: 10}


@pytest.mark.parametrize(("syscall", "stack"), [(FUTEX, 2), (POLL, 1)], ids=["a lock of Python", "another process"])
def test_who_waits_for_something_else_does_not_wait_for_the_library(syscall: int, stack: int) -> None:
    line, _ = line_of(away((2, 6), syscall, stack), call((1, 9)))
    assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 4}


def test_side_threads_do_not_wait_for_the_library() -> None:
    line, _ = line_of(away((2, 6)), call((1, 9)), is_training=False)
    assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 4}


spans = st.lists(st.tuples(st.floats(0.01, 1.5), st.floats(0.001, 1.0)), min_size=1, max_size=8)


def laid_out(gaps: list[Span]) -> list[Span]:
    found, now = [], 0.0
    for gap, length in gaps:
        found.append((now + gap, now + gap + length))
        now = found[-1][1]
    return found


@settings(max_examples=60, deadline=None)
@given(spans, spans, spans)
def test_where_the_wait_is_timed_the_librarys_threads_change_nothing(
    absent: list[Span], carried: list[Span], waits: list[Span]
) -> None:
    events = [away(span) for span in laid_out(absent)]
    events += [call(span, GLOO) for span in laid_out(carried)]
    events += [call(span, WAIT, MAIN) for span in laid_out(waits)]
    with_it, _ = line_of(*events)
    without, _ = line_of(*events, is_training=False)
    assert np.array_equal(with_it.start_s, without.start_s)
    assert np.array_equal(with_it.kind, without.kind) and np.array_equal(with_it.collective, without.collective)


def test_waiting_for_what_a_librarys_thread_computes_while_that_one_stands_in_the_queue_is_the_queues() -> None:
    """XLA computes on threads of its own: the job waits for a core, not for what it does itself."""
    library = away((3, 5), tid=LIBRARY, ready_s=1.5)
    line, _ = line_of(away((2, 6)), library)
    assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 2.5, timeline.SCHED: 1.5}
    # Python's own locks wait for other Python threads, a socket for other processes.
    for other in (away((2, 6), stack=2), away((2, 6), syscall=POLL)):
        line, _ = line_of(other, library)
        assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 4}


def test_while_all_threads_of_the_process_sleep_it_waits_for_the_peers_also_before_the_collective_is_called() -> None:
    line, names = line_of(away((2, 6)), all_slept((2.5, 3.5)), call((4, 5)))
    assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 2, timeline.COLLECTIVE: 2}
    assert names == {"allreduce"}
    # From the collective's end on as well, after the last one of the window too.
    line, _ = line_of(away((2, 6)), call((3, 4)), all_slept((3.5, 5)))
    assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 2, timeline.COLLECTIVE: 2}


def test_where_no_thread_of_a_library_carries_collectives_a_sleeping_process_waits_for_itself() -> None:
    line, _ = line_of(away((2, 6)), all_slept((2, 6)))
    assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 4}
    # torch's wait is timed: what else it waits for is no collective.
    line, _ = line_of(away((2, 6)), all_slept((2, 6)), call((7, 8), GLOO), call((7, 8), WAIT, MAIN), away((7, 8)))
    assert seconds(line) == {timeline.CPU: 5, timeline.SYNC: 4, timeline.COLLECTIVE: 1}


@pytest.mark.parametrize(("syscall", "stack"), [(FUTEX, 2), (POLL, 1)], ids=["a lock of Python", "another process"])
def test_who_waits_for_something_else_does_so_while_the_process_sleeps(syscall: int, stack: int) -> None:
    line, _ = line_of(away((2, 6), syscall, stack), all_slept((2, 6)), call((7, 8)))
    assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 4}


def test_a_process_that_slept_until_a_python_thread_was_woken_waited_for_that() -> None:
    for woken in (MAIN, OTHER_PYTHON):
        line, _ = line_of(away((2, 6)), all_slept((2, 6), woken), call((7, 8)), python=[OTHER_PYTHON])
        assert seconds(line) == {timeline.CPU: 6, timeline.SYNC: 4}


@pytest.mark.parametrize("syscall", [SLEEP, READ])
def test_a_python_thread_that_sleeps_by_its_own_will_or_reads_may_be_what_is_waited_for(syscall: int) -> None:
    other = away((3, 5), syscall, tid=OTHER_PYTHON)
    other["aux"] = 2 if syscall == READ else INTERRUPTIBLE
    line, _ = line_of(
        away((1, 9)), other, all_slept((1.5, 2.5)), all_slept((3.5, 4.5)), call((9, 9.5)), python=[OTHER_PYTHON]
    )
    assert seconds(line) == {timeline.CPU: 2, timeline.SYNC: 7, timeline.COLLECTIVE: 1}
