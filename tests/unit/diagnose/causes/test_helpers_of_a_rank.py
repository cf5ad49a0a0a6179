"""A rank that waits for a thread or a process of its own: what that does more than its like on the peers is named."""

from __future__ import annotations

import pytest
from builders import TRAIN, Job, Work, build, columns

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame

LIBRARY = "/usr/lib/python3.11"
LATE_S = 0.06
TAKES = StackFrame("Feeder.__iter__", TRAIN, 40)
FROM_A_QUEUE = Work(
    "sync", "futex", 0, 355, f"{LIBRARY}/threading.py", caller="Condition.wait",
    frames=(TAKES, StackFrame("Queue.get", f"{LIBRARY}/queue.py", 171)),
)  # fmt: skip
FROM_A_PIPE = Work(
    "sync", "read", 0, 395, f"{LIBRARY}/multiprocessing/connection.py", caller="Connection._recv", frames=(TAKES,)
)
FROM_A_LOADER = Work(
    "sync", "futex", 0, 295, f"{LIBRARY}/site-packages/io/dataloader/iter.py", caller="__next__", frames=(TAKES,)
)
UNDER_A_LOCK = Work("sync", "futex", 0, 40, caller="Feeder.__iter__")
READS = Work("python", "read_record", 0, 33, detail="sleep")


def suspect(waits: Work, helper: str, busy_s: float) -> Suspect:
    """The first suspect where rank 3 waits for a helper ('other': a thread, 'loader': a process) that is busy for so long."""
    [window] = build(Job(extra={3: [(waits, LATE_S), (READS, 1e-6)]}))
    rows = [
        row | ({"thread": helper, "beta": 0.0, "per_step_s": busy_s} if row["name"] == READS.name else {})
        for row in window.patterns.to_pylist()
    ]
    verdict = diagnose([columns(window, "patterns", rows)])
    assert verdict.status == "fault"
    assert verdict.suspects[0].ranks == (3,)
    return verdict.suspects[0]


@pytest.mark.parametrize(
    ("waits", "helper"), [(FROM_A_QUEUE, "other"), (FROM_A_LOADER, "other"), (FROM_A_PIPE, "loader")]
)
def test_what_a_helper_does_is_named_where_it_is_waited_for(waits: Work, helper: str) -> None:
    found = suspect(waits, helper, LATE_S)
    assert (found.component, found.cause) == ("python", "blocking-call")
    assert found.function is not None
    assert (found.function.name, found.function.line) == ("read_record", 33)


@pytest.mark.parametrize(
    ("waits", "helper", "busy_s"),
    [(UNDER_A_LOCK, "other", LATE_S), (FROM_A_QUEUE, "other", 0.1 * LATE_S), (UNDER_A_LOCK, "loader", LATE_S)],
    ids=["a lock", "a thread that does little more", "a lock and a busy process"],
)
def test_a_helper_is_not_named_for_what_it_is_not_asked(waits: Work, helper: str, busy_s: float) -> None:
    found = suspect(waits, helper, busy_s)
    assert (found.component, found.cause) == ("python", "lock")
    assert found.function is not None
    assert found.function.name == "Feeder.__iter__"


def test_a_late_batch_is_the_loaders_where_its_thread_does_little_more() -> None:
    found = suspect(FROM_A_LOADER, "other", 0.1 * LATE_S)
    assert (found.component, found.cause, found.function) == ("python", "dataloader", None)


@pytest.mark.parametrize(("busy_s", "named"), [(LATE_S, "read_record"), (0.2 * LATE_S, "futex")])
def test_what_helpers_of_all_ranks_do_more_than_before_is_named_where_all_wait_for_them(
    busy_s: float, named: str
) -> None:
    def windows(late_s: float, busy_s: float, start: float) -> list[Window]:
        extra = {rank: [(FROM_A_QUEUE, late_s), (READS, 1e-6)] for rank in range(8)}
        result = []
        for window in build(Job(extra=extra, start=start)):
            rows = [
                row | ({"thread": "other", "beta": 0.0, "per_step_s": busy_s} if row["name"] == READS.name else {})
                for row in window.patterns.to_pylist()
            ]
            result.append(columns(window, "patterns", rows))
        return result

    now, before = windows(LATE_S, 0.001 + busy_s, 1.76e9), windows(1e-6, 0.001, 1.75e9)
    verdict = diagnose(now, before)
    first = verdict.suspects[0]
    assert (verdict.status, first.component, first.cause) == ("fault", "workload", "slow-everywhere")
    assert first.function is not None and first.function.name == named
