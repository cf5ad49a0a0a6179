"""Priority of the observing thread: ahead of the ranks while it drains events, behind them while it only computes.

Draining takes little CPU, but at once: behind ranks that keep every core busy, events were lost (64 ranks on 2 cores: 93,000 in 8 s).
Rows of a window take most of what an observer computes, 0.5 to 0.9 s of CPU for 8 ranks and 10 s, and nobody waits for them to the
millisecond: they take what the ranks leave idle, for `YIELDS_S` seconds at most, so that a host without idle time delays a verdict and
does not prevent it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from rankscope.probes import rights
from rankscope.probes.patience import patiently, workers

AHEAD = -10  # the nice value ahead of ordinary work, behind what is real-time
YIELDS_S = 2.0


@dataclass(slots=True)
class Priorities:
    """Sets priorities of threads, and ends in time what was lowered. Call `close` when the threads have ended."""

    _timers: dict[int, threading.Timer] = field(default_factory=dict)

    def set(self, tid: int, nice: int, yields_s: float = 0.0) -> None:
        """Give a thread the nice value `nice`; with `yields_s`, let it run for so long only where no other thread wants the CPU.

        Raises OSError.
        """
        if timer := self._timers.pop(tid, None):
            timer.cancel()
        os.sched_setscheduler(tid, os.SCHED_IDLE if yields_s > 0 else os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, tid, nice)
        if yields_s > 0:
            timer = threading.Timer(yields_s, self._end, (tid, nice))
            timer.daemon = True
            self._timers[tid] = timer
            try:
                timer.start()
            except RuntimeError:  # no thread to be had: then it does not yield
                self._end(tid, nice)

    def _end(self, tid: int, nice: int) -> None:
        if self._timers.pop(tid, None) is not None:  # else its priority was set meanwhile
            with contextlib.suppress(OSError):
                self.set(tid, nice)

    def close(self) -> None:
        """Cancel what is still to be ended."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


_PRIORITIES = Priorities()


@contextlib.contextmanager
def going_first() -> Iterator[None]:
    """Run this thread ahead of ordinary work. Start nothing in here: threads and processes inherit it."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    tids = (threading.get_native_id(), *workers())  # those that read /proc for it as well
    _set_all(tids, min(usual, AHEAD))
    try:
        yield
    finally:
        _set_all(tids, usual)


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """Run this thread, for `YIELDS_S` at most, only where no other thread wants the CPU.

    Only for computing: start no process in here, which inherits it. The thread that reads /proc for this one (probes/patience.py) keeps
    its priority, as a target waits for the locks that such a read takes. So does attaching and detaching, in another process.
    """
    usual, tid = os.getpriority(os.PRIO_PROCESS, 0), threading.get_native_id()
    patiently(lambda: None)  # one that reads is there
    _set_all((tid,), usual, YIELDS_S)
    try:
        yield
    finally:
        _set_all((tid, *workers()), usual)  # a worker that was started meanwhile has inherited it


def _set_all(tids: tuple[int, ...], nice: int, yields_s: float = 0.0) -> None:
    asked = rights.elsewhere()
    for tid in tids:
        with contextlib.suppress(OSError):
            if asked is None:
                _PRIORITIES.set(tid, nice, yields_s)
            else:
                asked.ask("priority", tid=tid, nice=nice, yields_s=yields_s)
