"""Every instant of a thread belongs to exactly one class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.observer.thread import timeline
from rankscope.observer.thread.timeline import Absences, Scopes

NANOSLEEP, FUTEX, READ, POLL, SELECT, NO_SYSCALL = 230, 202, 0, 7, 23, 0xFFFF
INTERRUPTIBLE, UNINTERRUPTIBLE, RUNNABLE, STOPPED = 1, 2, 0, 4
NO_SCOPES = Scopes(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))


def absences(*rows: tuple[float, float, float, int, int]) -> Absences:
    """(start, end, ready, syscall, state)."""
    columns = list(zip(*rows, strict=True)) if rows else [[], [], [], [], []]
    count = len(rows)
    return Absences(
        np.array(columns[0], dtype=float), np.array(columns[1], dtype=float), np.array(columns[2], dtype=float),
        np.array(columns[3], dtype=np.int64), np.zeros(count, dtype=np.int64), np.array(columns[4], dtype=np.int64),
        np.arange(1, count + 1, dtype=np.uint64),
    )  # fmt: skip


def scopes(*rows: tuple[float, float]) -> Scopes:
    return Scopes(np.array([r[0] for r in rows]), np.array([r[1] for r in rows]), np.arange(len(rows)))


def seconds_by_kind(
    away: Absences, collectives: Scopes = NO_SCOPES, files: Scopes = NO_SCOPES, window_s: float = 10.0
) -> dict[int, float]:
    line = timeline.build(
        window_s, away, collectives, files,
        file_kinds=np.full(max(len(files.label), 1), timeline.IO), edges_s=np.empty(0),
    )  # fmt: skip
    assert float(line.seconds.sum()) == pytest.approx(window_s)
    return {int(kind): round(float(line.seconds[line.kind == kind].sum()), 6) for kind in np.unique(line.kind)}


@pytest.mark.parametrize(
    ("syscall", "state", "kind"),
    [
        (NANOSLEEP, INTERRUPTIBLE, timeline.SLEEP),
        (SELECT, INTERRUPTIBLE, timeline.SLEEP),
        (FUTEX, INTERRUPTIBLE, timeline.SYNC),
        (POLL, INTERRUPTIBLE, timeline.SYNC),
        (READ, UNINTERRUPTIBLE, timeline.IO),
        (READ, INTERRUPTIBLE, timeline.SYNC),
        (NO_SYSCALL, UNINTERRUPTIBLE, timeline.IO),
        (NO_SYSCALL, STOPPED, timeline.STOPPED),
    ],
)
def test_a_blocked_thread_is_classed_by_what_it_is_blocked_in(syscall: int, state: int, kind: int) -> None:
    assert seconds_by_kind(absences((2, 5, 0, syscall, state))) == {timeline.CPU: 7, kind: 3}


def test_the_end_of_an_absence_after_the_wake_up_is_waiting_for_a_cpu() -> None:
    assert seconds_by_kind(absences((2, 5, 1, FUTEX, INTERRUPTIBLE))) == {
        timeline.CPU: 7,
        timeline.SYNC: 2,
        timeline.SCHED: 1,
    }


def test_who_was_woken_and_waits_for_a_cpu_is_on_its_own_time_even_inside_a_collective() -> None:
    found = seconds_by_kind(absences((2, 6, 1, FUTEX, INTERRUPTIBLE)), collectives=scopes((1, 7)))
    assert found == {timeline.CPU: 4, timeline.COLLECTIVE: 5, timeline.SCHED: 1}


def test_a_thread_that_polls_in_a_collective_waits_there_also_while_another_has_its_cpu() -> None:
    preempted = absences((2, 4, 2, NO_SYSCALL, RUNNABLE), (5, 6, 1, NO_SYSCALL, RUNNABLE))
    found = seconds_by_kind(preempted, collectives=scopes((1, 7)))
    assert found == {timeline.CPU: 4, timeline.COLLECTIVE: 6}


def test_a_thread_that_is_preempted_between_collectives_is_on_its_own_time() -> None:
    found = seconds_by_kind(absences((2, 4, 2, NO_SYSCALL, RUNNABLE)), collectives=scopes((3, 7)))
    assert found == {timeline.CPU: 5, timeline.SCHED: 1, timeline.COLLECTIVE: 4}


def test_a_stop_inside_a_collective_stays_a_stop() -> None:
    found = seconds_by_kind(absences((2, 4, 0, NO_SYSCALL, STOPPED)), collectives=scopes((1, 7)))
    assert found == {timeline.CPU: 4, timeline.STOPPED: 2, timeline.COLLECTIVE: 4}


def test_a_wait_inside_a_backward_pass_counts_once_when_scopes_nest() -> None:
    assert seconds_by_kind(absences(), collectives=scopes((1, 8), (2, 3), (4, 5)))[timeline.COLLECTIVE] == 7


def test_a_read_is_io_whether_it_blocks_or_copies() -> None:
    found = seconds_by_kind(absences((3, 4, 0, READ, UNINTERRUPTIBLE)), files=scopes((2, 5)))
    assert found == {timeline.CPU: 7, timeline.IO: 3}


def test_a_collective_whose_own_threads_lack_a_cpu_is_not_waiting_for_others() -> None:
    line = timeline.build(
        10.0, absences((1, 9, 0, FUTEX, INTERRUPTIBLE)), scopes((1, 9)), NO_SCOPES,
        file_kinds=np.empty(0, dtype=np.int64), edges_s=np.empty(0), queued=scopes((0, 0.5), (2, 4), (3, 5), (9.5, 10)),
    )  # fmt: skip
    found = {int(kind): float(line.seconds[line.kind == kind].sum()) for kind in np.unique(line.kind)}
    assert found == pytest.approx({timeline.CPU: 2, timeline.COLLECTIVE: 5, timeline.SCHED: 3})


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 12), st.floats(0, 2), st.floats(0, 1), st.sampled_from([0, 7, 23, 35, 202, 0xFFFF]), st.integers(0, 7)
        ),
        max_size=20,
    ),
    st.lists(st.tuples(st.floats(-1, 12), st.floats(0, 3)), max_size=8),
)  # fmt: skip
def test_any_events_fill_the_window_exactly(
    raw: list[tuple[float, float, float, int, int]], calls: list[tuple[float, float]]
) -> None:
    rows, now = [], 0.0
    for gap, length, ready_share, syscall, state in raw:
        start = now + gap
        now = start + length
        rows.append((start, now, length * ready_share, syscall, state))
    found = seconds_by_kind(
        absences(*rows), collectives=scopes(*((s, s + d) for s, d in calls)) if calls else NO_SCOPES
    )
    assert sum(found.values()) == pytest.approx(10.0, abs=1e-4)
