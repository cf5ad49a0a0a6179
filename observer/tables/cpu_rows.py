"""Build rows of the table `counters`: CPU time of a rank, processes that ran meanwhile, the observer's own cost."""

from __future__ import annotations

import resource
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from rankscope.observer.window.rows import CounterRow
from rankscope.probes.host.fair import group_by
from rankscope.probes.sched.probe import EndedChild, ProcessTimes, Taken, ThreadTimes

_Times = TypeVar("_Times", ThreadTimes, ProcessTimes)

_MIN_TAKEN_S = 0.001
_MAX_TAKERS = 16


@dataclass(frozen=True, slots=True)
class CpuTotals:
    """Sums of the scheduler at one time: by thread, by process with its ended threads, by pair of
    process and taker, by process that ended before it was found.
    """

    threads: Mapping[int, ThreadTimes]
    processes: Mapping[int, ProcessTimes]
    takers: Mapping[tuple[int, int], Taken]
    children: Mapping[int, EndedChild] = field(default_factory=dict)


class CpuUse:
    """Growth of the scheduler's sums from `before` to `now`, indexed once for all ranks.

    `owners`: process -> pid of its rank; what a worker takes is taken by its rank.
    """

    def __init__(self, now: CpuTotals, before: CpuTotals, owners: Mapping[int, int]) -> None:
        self.now, self.before, self.owners = now, before, owners
        self._threads = group_by(now.threads.values(), lambda times: times.tgid)
        self._takers = group_by(now.takers.items(), lambda item: item[1].pid)
        self._processes = group_by(now.processes, owners.get)
        self._children = group_by(now.children, owners.get)

    def threads_of(self, pid: int) -> Sequence[ThreadTimes]:
        """Return the CPU times (sums, at `now`) of the threads of a process."""
        return self._threads.get(pid, ())

    def rows(self, number: int, pid: int, training: Collection[int]) -> list[CounterRow]:
        """Build a rank's rows of CPU time: training threads, process, workers, and what ran while its threads queued.

        `number`: the rank's number; `training`: tids.
        """
        now, before = self.now, self.before
        of_rank = partial(CounterRow, "rank", rank=number)
        rows = []
        mine = [tid for tid in training if tid in now.threads and now.threads[tid].tgid == pid]
        if mine:
            run_s, ready_s = (
                sum(each) for each in zip(*(_growth(now.threads, before.threads, tid) for tid in mine), strict=True)
            )
            rows += [of_rank(name="cpu.run_s", value=run_s), of_rank(name="cpu.ready_s", value=ready_s)]
        run_s, ready_s = _growth(now.processes, before.processes, pid)
        rows += [of_rank(name="cpu.process_run_s", value=run_s), of_rank(name="cpu.process_ready_s", value=ready_s)]
        workers = [process for process in self._processes.get(pid, ()) if process != pid]
        ended = [process for process in self._children.get(pid, ()) if process not in now.processes]
        if workers or ended:
            run_s = sum(_growth(now.processes, before.processes, process)[0] for process in workers)
            run_s += sum(self._ran_before_found_s(process) for process in ended)
            rows.append(of_rank(name="cpu.workers_run_s", value=run_s))
        taken_by: dict[tuple[str, int], float] = {}
        for pair, taken in self._takers.get(pid, ()):
            seconds = taken.seconds - (before.takers[pair].seconds if pair in before.takers else 0.0)
            taker = self.owners.get(taken.taker, taken.taker)
            taken_by[taken.comm, taker] = taken_by.get((taken.comm, taker), 0.0) + seconds
        for (comm, taker), seconds in sorted(taken_by.items(), key=lambda item: -item[1])[:_MAX_TAKERS]:
            if seconds >= _MIN_TAKEN_S:
                rows.append(of_rank(comm=comm, pid=taker, name="cpu.taken_s", value=seconds))
        return rows

    def _ran_before_found_s(self, process: int) -> float:
        """Return the CPU seconds since `before` of a process that ended before it was found."""
        now, then = self.now.children[process], self.before.children.get(process)
        return now.run_s - (then.run_s if then is not None and then.since_s == now.since_s else 0.0)


def _growth(now: Mapping[int, _Times], before: Mapping[int, _Times], number: int) -> tuple[float, float]:
    """Return the seconds since `before` that a thread or process (`number`) ran, and was ready but not running.

    (0.0, 0.0) if unknown. The sums of an ending thread may restart, its rest is negligible.
    """
    times, then = now.get(number), before.get(number)
    if times is None:
        return 0.0, 0.0
    if then is None:
        return times.run_s, times.ready_s
    return max(times.run_s - then.run_s, 0.0), max(times.ready_s - then.ready_s, 0.0)


def observer_rows(cpu_s_before: float) -> list[CounterRow]:
    """Build rows of the observer's own cost: CPU time of this process in the window, its peak
    memory.
    """
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return [
        CounterRow("host", name="observer.cpu_s", value=time.process_time() - cpu_s_before),
        CounterRow("host", name="observer.peak_bytes", unit="bytes", kind="gauge", value=float(peak_bytes)),
    ]
