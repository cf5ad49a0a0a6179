"""Signals for a loop that waits: whichever thread of the process the kernel gives one to, the loop hears of it.

To block them and wait for them (sigtimedwait) is not enough: libraries start threads of their own as they are loaded, which block
nothing, and a signal that one of them gets would end the process.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = frozenset((signal.SIGTERM, signal.SIGINT))
HEARD = (*ENDING, signal.SIGHUP)
_MOST = 64
_PR_SET_PDEATHSIG = 1


@contextmanager
def heard() -> Iterator[Callable[[float], frozenset[int]]]:
    """Yields a function that waits so many seconds, or until there are signals, and says which. In the main thread only."""
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
    """In a fork: signals end it again."""
    signal.set_wakeup_fd(-1)
    for number in HEARD:
        signal.signal(number, signal.SIG_DFL)


def end_with(parent: int) -> bool:
    """In a fork: it ends when the process that forked it does; whether that one still lives."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def _wait(ours: socket.socket, seconds: float) -> frozenset[int]:
    ready, _, _ = select.select([ours], [], [], seconds)
    return frozenset(ours.recv(_MOST)) if ready else frozenset()
