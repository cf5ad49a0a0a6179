"""Signals for a loop that waits: it receives them whichever thread of the process gets them from the kernel.

Blocking them and waiting (sigtimedwait) is not enough: libraries start threads when they are
loaded, which block nothing, and a signal to one of those would end the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = frozenset((signal.SIGTERM, signal.SIGINT))
HEARD = (*ENDING, signal.SIGHUP)
_MOST = 64
_LET_GO_S = 1.0
_HELD: set[int] = set()  # killed, and not gone yet
_PR_SET_PDEATHSIG = 1


@contextmanager
def heard() -> Iterator[Callable[[float], frozenset[int]]]:
    """Yield a function that waits so many seconds, or for signals, and returns these. In the main thread only."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in HEARD}
        outer = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield lambda seconds: _wait(ours, seconds)
        finally:
            signal.set_wakeup_fd(outer)
            for number, handler in before.items():
                signal.signal(number, handler)


def as_usual() -> None:
    """Restore the default handling of the service's signals, in a forked child."""
    signal.set_wakeup_fd(-1)
    for number in HEARD:
        signal.signal(number, signal.SIG_DFL)


def end_with(parent: int) -> bool:
    """Make a forked child end with its parent; return whether the parent is still alive."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def end(pid: int) -> None:
    """Kill a child of this process; wait for its end at most a second.

    One that the kernel does not release (it waits for a dead disk) is reaped by a later call.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _HELD.add(pid)
    until = time.monotonic() + _LET_GO_S
    while True:
        _HELD.difference_update([one for one in _HELD if _is_gone(one)])
        if pid not in _HELD or time.monotonic() >= until:
            return
        time.sleep(0.005)


def _is_gone(pid: int) -> bool:
    """Reap a child of this process if it has ended; return whether it has."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _wait(ours: socket.socket, seconds: float) -> frozenset[int]:
    """Wait so many seconds, or for signals, and return their numbers."""
    ready, _, _ = select.select([ours], [], [], seconds)
    return frozenset(ours.recv(_MOST)) if ready else frozenset()
