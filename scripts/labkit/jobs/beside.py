"""What programs that are not of the lab use of the CPUs while a case is asked, as the lab itself counts it.

beside = (busy time of all CPUs - of the job - of what the lab started beside it - of what it asked) / time of all CPUs
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from labkit.jobs import machine

# Above this share of the CPUs a job cannot be said to be undisturbed: its steps may be longer by as much as a step may be told wrong.
QUIET = 0.10


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds since some instant: all that passed, what was busy, and what of that is the lab's."""

    passed: float
    busy: float
    ours: float

    def beside(self, before: Used) -> float:
        """Share of the CPUs, 0..1, that others used since `before`; 0 where no time passed."""
        passed = self.passed - before.passed
        others = (self.busy - before.busy) - (self.ours - before.ours)
        return min(max(others / passed, 0.0), 1.0) if passed > 0 else 0.0


def used(groups: Iterable[Path]) -> Used:
    """Until now, by everybody; ours are the processes in these control groups, this process and all of its that have ended."""
    of_host = psutil.cpu_times()
    passed = sum(of_host) - of_host.guest - of_host.guest_nice  # which lie in user and nice
    ours = sum(_of_process(pid) for group in groups for pid in machine.processes(group))
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        mine = resource.getrusage(who)
        ours += mine.ru_utime + mine.ru_stime
    return Used(passed, passed - of_host.idle - of_host.iowait, ours)


def _of_process(pid: int) -> float:
    """With those of its children that have ended and were waited for."""
    with contextlib.suppress(psutil.Error):
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    return 0.0
