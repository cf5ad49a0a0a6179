"""CPU time of ranks, from the scheduler's sums at the window's two ends."""

from __future__ import annotations

from rankscope.observer.finish import last
from rankscope.observer.tables.cpu_rows import CpuTotals, CpuUse
from rankscope.probes.sched.probe import EndedChild, ProcessTimes, Taken, ThreadTimes

RANK, MAIN, HELPER, WORKER, STRANGER = 10, 10, 11, 20, 77


def thread(tid: int, tgid: int, run_s: float, ready_s: float) -> ThreadTimes:
    return ThreadTimes(tid, tgid, run_s, ready_s, 0.0, 0.0, 1, 0, 0, 0, 0, 0, 0)


def rows(now: CpuTotals, before: CpuTotals) -> dict[str, float]:
    return {row.name: row.value for row in CpuUse(now, before, {RANK: RANK, WORKER: RANK}).rows(0, RANK, (MAIN,))}


def test_a_process_that_ends_in_the_window_used_what_its_threads_used_until_then() -> None:
    """The helper ends, the worker too; of the main thread a last piece is seen after it was counted."""
    before = CpuTotals(
        {
            MAIN: thread(MAIN, RANK, 5.0, 1.0),
            HELPER: thread(HELPER, RANK, 3.0, 0.5),
            WORKER: thread(WORKER, WORKER, 2.0, 0.1),
        },
        {RANK: ProcessTimes(8.0, 1.5), WORKER: ProcessTimes(2.0, 0.1)},
        {},
    )
    now = CpuTotals(
        {MAIN: thread(MAIN, RANK, 0.01, 0.02)}, {RANK: ProcessTimes(9.5, 1.9), WORKER: ProcessTimes(2.25, 0.1)}, {}
    )
    found = rows(now, before)
    assert found["cpu.process_run_s"] == 1.5
    assert round(found["cpu.process_ready_s"], 9) == 0.4
    assert found["cpu.workers_run_s"] == 0.25
    assert min(found.values()) >= 0.0


def test_what_a_stranger_took_counts_from_the_windows_beginning() -> None:
    threads = {MAIN: thread(MAIN, RANK, 5.0, 1.0)}
    processes = {RANK: ProcessTimes(5.0, 1.0)}
    before = CpuTotals(threads, processes, {(MAIN, STRANGER): Taken(MAIN, STRANGER, "backup", 0.25)})
    now = CpuTotals(threads, processes, {(MAIN, STRANGER): Taken(MAIN, STRANGER, "backup", 0.75)})
    assert rows(now, before)["cpu.taken_s"] == 0.5


def test_what_a_stranger_took_of_a_thread_that_has_ended_counts() -> None:
    processes = {RANK: ProcessTimes(5.0, 1.0)}
    now = CpuTotals({}, processes, {(RANK, STRANGER): Taken(RANK, STRANGER, "backup", 0.5)})
    assert rows(now, CpuTotals({}, processes, {}))["cpu.taken_s"] == 0.5


def test_workers_that_ended_before_they_were_found_are_their_ranks_and_no_strangers() -> None:
    processes = {RANK: ProcessTimes(5.0, 1.0)}
    short, again = 901, 902
    before = CpuTotals({}, processes, {}, {again: EndedChild(RANK, 7, 0.5)})
    now = CpuTotals(
        {}, processes, {(RANK, short): Taken(RANK, short, "pt_data_worker", 0.25)},
        {short: EndedChild(RANK, 9, 0.75), again: EndedChild(RANK, 7, 0.625)},
    )  # fmt: skip
    owners = last.with_ended({RANK: RANK}, now.children)
    found = CpuUse(now, before, owners).rows(0, RANK, ())
    assert {row.name: row.value for row in found}["cpu.workers_run_s"] == 0.875
    assert [row.pid for row in found if row.name == "cpu.taken_s"] == [RANK]
