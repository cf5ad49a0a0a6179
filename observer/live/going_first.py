"""The thread that observes stands before others in the queue for the CPU.

It takes little, but that at once: behind ranks that keep every core busy it would drain the events too late, and lose some
(64 ranks on 2 cores: 93,000 in 8 s).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from rankscope.probes import rights
from rankscope.probes.patience import workers

_NICE = -10  # before ordinary work, behind what is real-time


@contextlib.contextmanager
def going_first() -> Iterator[None]:
    """This thread, meanwhile. Start nothing in here: threads and processes inherit it."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    _stand(min(usual, _NICE))
    try:
        yield
    finally:
        _stand(usual)


def _stand(nice: int) -> None:
    """This thread, and those that read of processes for it."""
    asked = rights.elsewhere()
    for tid in (threading.get_native_id(), *workers()):
        with contextlib.suppress(OSError):
            if asked is None:
                os.setpriority(os.PRIO_PROCESS, tid, nice)
            else:
                asked.ask("stand", tid=tid, nice=nice)
