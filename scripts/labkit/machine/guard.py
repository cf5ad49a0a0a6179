"""One lab at a time on a host, and nothing left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labkit import launch
from labkit.machine.shell import EXIT_NOT_PERMITTED, LabError

LOCK = Path("/run/rslab.lock")
WAIT_S = 900.0


@contextlib.contextmanager
def lab_to_oneself(lock: Path = LOCK, clean_up: Callable[[], int] = launch.clean_up) -> Iterator[int]:
    """Hold the host's lab; yields how many leftovers of an earlier one were removed first. SIGTERM and SIGHUP act as Ctrl-C."""
    if os.geteuid():
        raise LabError("the lab makes namespaces and control groups", "Run it as root.", EXIT_NOT_PERMITTED)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    before: dict[int, Any] = {}
    try:
        _wait_for(handle)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        for number in (signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, _interrupt)
        yield clean_up()
    finally:
        # Who goes on has children: a process of a pool that is told to end must end, not raise something while it starts.
        for one, handler in before.items():
            signal.signal(one, handler)
        os.close(handle)


def _wait_for(handle: int) -> None:
    deadline = time.monotonic() + WAIT_S
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(handle, 20, 0).decode(errors="replace")
            if time.monotonic() > deadline:
                raise LabError(f"another lab (pid {owner}) has been running for {WAIT_S:.0f} s") from None
            if not told:
                print(f"another lab (pid {owner}) is running on this host, waiting for it …", file=sys.stderr)
                told = True
            time.sleep(1)
        else:
            return


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
