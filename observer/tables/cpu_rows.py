"""CPU time of a rank, who took it, and what observing took: rows of the table `counters`."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from functools import partial

from rankscope.observer.window.rows import CounterRow
from rankscope.probes.sched.probe import Taken, ThreadTimes

_MIN_TAKEN_S = 0.001
_MAX_TAKERS = 16


def cpu_rows(
    number: int, pid: int, training_thread: int, threads: Mapping[int, ThreadTimes], takers: Sequence[Taken],
    threads_before: Mapping[int, ThreadTimes], takers_before: Mapping[tuple[int, int], float], owners: Mapping[int, int],
) -> list[CounterRow]:  # fmt: skip
    """CPU time of the training thread, of the whole process and of its workers, and who ran while its threads stood in the queue.

    `owners`: processes that belong to a rank, with the pid of that; what a worker takes is taken by its rank.
    """

    def growth(tid: int) -> tuple[float, float]:
        now, then = threads[tid], threads_before.get(tid)
        return now.run_s - (then.run_s if then else 0.0), now.ready_s - (then.ready_s if then else 0.0)

    of_rank = partial(CounterRow, "rank", rank=number)
    rows = []
    mine = [tid for tid, times in threads.items() if times.tgid == pid]
    if training_thread in mine:
        run_s, ready_s = growth(training_thread)
        rows += [of_rank(name="cpu.run_s", value=run_s), of_rank(name="cpu.ready_s", value=ready_s)]
    both = [growth(tid) for tid in mine]
    rows += [
        of_rank(name="cpu.process_run_s", value=sum(run_s for run_s, _ in both)),
        of_rank(name="cpu.process_ready_s", value=sum(ready_s for _, ready_s in both)),
    ]
    workers = [growth(tid)[0] for tid, times in threads.items() if times.tgid != pid and owners.get(times.tgid) == pid]
    if workers:
        rows.append(of_rank(name="cpu.workers_run_s", value=sum(workers)))
    taken_by: dict[tuple[str, int], float] = {}
    for taken in takers:
        if taken.tid in mine and taken.taker not in (0, pid):
            seconds = taken.seconds - takers_before.get((taken.tid, taken.taker), 0.0)
            taker = owners.get(taken.taker, taken.taker)
            taken_by[taken.comm, taker] = taken_by.get((taken.comm, taker), 0.0) + seconds
    for (comm, taker), seconds in sorted(taken_by.items(), key=lambda item: -item[1])[:_MAX_TAKERS]:
        if seconds >= _MIN_TAKEN_S:
            rows.append(of_rank(comm=comm, pid=taker, name="cpu.taken_s", value=seconds))
    return rows


def observer_rows(cpu_s_before: float) -> list[CounterRow]:
    """What the observation itself took: CPU time of this process in the window, its peak memory."""
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return [
        CounterRow("host", name="observer.cpu_s", value=time.process_time() - cpu_s_before),
        CounterRow("host", name="observer.peak_bytes", unit="bytes", kind="gauge", value=float(peak_bytes)),
    ]
