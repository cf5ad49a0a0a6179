"""Raise the CPU priority of the observing thread.

It needs little time, but at once: queued behind ranks on every core it would drain the events too
late, and lose some (64 ranks on 2 cores: 93,000 in 8 s).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from rankscope.probes import rights
from rankscope.probes.patience import workers

_NICE = -10  # before ordinary work, after real-time work


@contextlib.contextmanager
def going_first() -> Iterator[None]:
    """Raise this thread's priority in the block. Start no threads or processes in it: they would
    inherit it.
    """
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    _stand(min(usual, _NICE))
    try:
        yield
    finally:
        _stand(usual)


def _stand(nice: int) -> None:
    """Set the nice value of this thread, and of the workers that read from processes for it."""
    asked = rights.elsewhere()
    for tid in (threading.get_native_id(), *workers()):
        with contextlib.suppress(OSError):
            if asked is None:
                os.setpriority(os.PRIO_PROCESS, tid, nice)
            else:
                asked.ask("stand", tid=tid, nice=nice)
