"""Set the observing thread's priority: above the ranks' while it drains events, below them while it computes.

Draining needs little CPU time, but without delay: at the ranks' priority events were lost (64 ranks
on 2 cores: 93,000 in 8 s). Rows of a window are most of what an observer computes, 0.5 to 0.9 s of
CPU for 8 ranks and 10 s, and are not urgent: they use idle time only, for at most `YIELDS_S`
seconds, so that a busy host delays a verdict and does not prevent it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from rankscope.probes.base import rights
from rankscope.probes.base.patience import patiently, workers

AHEAD = -10  # nice value: before ordinary work, after real-time threads
YIELDS_S = 2.0


@dataclass(slots=True)
class Priorities:
    """Sets priorities of threads; lowered ones return after a time limit. Call `close` when the
    threads have ended.
    """

    usual: int = field(default_factory=lambda: os.sched_getscheduler(0))  # policy of this process as it began
    _timers: dict[int, threading.Timer] = field(default_factory=dict)

    def set(self, tid: int, nice: int, yields_s: float = 0.0) -> None:
        """Set a thread's nice value. Raises OSError.

        `yields_s`: seconds, at most, in which it runs only on idle CPUs; 0: none.
        """
        if timer := self._timers.pop(tid, None):
            timer.cancel()
        os.sched_setscheduler(tid, os.SCHED_IDLE if yields_s > 0 else self.usual, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, tid, nice)
        if yields_s > 0:
            timer = threading.Timer(yields_s, self._end, (tid, nice))
            timer.daemon = True
            self._timers[tid] = timer
            try:
                timer.start()
            except RuntimeError:  # no thread could be started: then it does not yield
                self._end(tid, nice)

    def _end(self, tid: int, nice: int) -> None:
        """Return a thread to ordinary scheduling, unless its priority was set meanwhile."""
        if self._timers.pop(tid, None) is not None:  # else its priority was set meanwhile
            with contextlib.suppress(OSError):
                self.set(tid, nice)

    def close(self) -> None:
        """Cancel all pending timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


_PRIORITIES = Priorities()


@contextlib.contextmanager
def going_first() -> Iterator[None]:
    """Run this thread before ordinary work. Start nothing in here: threads and processes inherit it."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    tids = (threading.get_native_id(), *workers())  # those that read /proc for it as well
    _set_all(tids, min(usual, AHEAD))
    try:
        yield
    finally:
        _set_all(tids, usual)


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """Run this thread only on idle CPUs, for at most `YIELDS_S` seconds.

    For computing alone: processes started in here inherit it. The thread that reads /proc for this
    one (probes/base/patience.py) retains its priority, as targets wait for the locks of such a read. So
    does the process that attaches and detaches.
    """
    usual, tid = os.getpriority(os.PRIO_PROCESS, 0), threading.get_native_id()
    patiently(lambda: None)  # make sure that a reading thread exists
    _set_all((tid,), usual, YIELDS_S)
    try:
        yield
    finally:
        _set_all((tid, *workers()), usual)  # a worker that was started meanwhile has inherited it


def _set_all(tids: tuple[int, ...], nice: int, yields_s: float = 0.0) -> None:
    """Set the nice value of these threads, here or through the process with the rights; failures are ignored.

    `yields_s`: seconds, at most, in which they run only on idle CPUs.
    """
    asked = rights.delegate()
    for tid in tids:
        with contextlib.suppress(OSError):
            if asked is None:
                _PRIORITIES.set(tid, nice, yields_s)
            else:
                asked.ask("priority", tid=tid, nice=nice, yields_s=yields_s)
