"""A storm below a rank, until it is killed: `forks HZ`, `execs HZ`, `crowd COUNT` (threads, children and files at once)."""

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

_DIE_WITH_PARENT = 1


def repeat(rate_hz: float, once: object) -> None:
    began, done = time.monotonic(), 0
    while True:
        while done < (time.monotonic() - began) * rate_hz:
            once()
            done += 1
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.005)


def fork() -> None:
    if not os.fork():
        time.sleep(0.02)
        os._exit(0)


def exec_() -> None:
    os.posix_spawn("/bin/true", ["true"], {})


def crowd(count: int) -> None:
    """More of everything that a map has a row for."""
    threading.stack_size(65536)
    libc = ctypes.CDLL(None)
    for _ in range(count // 4):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    ours = os.getpid()
    for _ in range(count // 4):
        if not os.fork():
            libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            if os.getppid() != ours:  # it ended before it was asked to take us with it
                os._exit(0)
            time.sleep(3600)
    with tempfile.TemporaryDirectory() as folder:
        turn = 0
        while True:
            path = Path(folder) / str(turn % count)
            path.write_bytes(b"x")
            path.read_bytes()
            path.unlink()
            turn += 1
            time.sleep(0.0005)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # a rank may be killed at any moment
    {"forks": lambda n: repeat(n, fork), "execs": lambda n: repeat(n, exec_), "crowd": crowd}[sys.argv[1]](
        int(sys.argv[2])
    )
