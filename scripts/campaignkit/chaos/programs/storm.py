"""Storms: in a thread of the rank, so that what they start are the rank's own children: `forks HZ`, `execs HZ`, `churn HZ` (both in turn),
`family COUNT` (so many children with threads and files). As a program below a rank, until it is killed: `crowd COUNT` (threads, children
and files at once).
"""

import ctypes
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

_DIE_WITH_PARENT = 1
_LIVES_S = (
    0.7  # what is started: some are there at each look of an observer, and have ended at the next, a second later
)
_THREADS = 12  # of each child of a family
warnings.filterwarnings("ignore", category=DeprecationWarning)  # a fork of a process with threads: it only sleeps


def repeat(rate_hz, once, ended):
    """So often a second, evenly, until `ended`; and nobody is left."""
    began, done = time.monotonic(), 0
    while not ended.wait(0.005):
        while done < (time.monotonic() - began) * rate_hz:
            once()
            done += 1
        reap()
    time.sleep(2 * _LIVES_S)
    reap()


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def fork():
    """As a loader worker is made."""
    if not os.fork():
        for _ in range(14):
            time.sleep(_LIVES_S / 14)  # it is seen to run
        os._exit(0)


def start():
    """The program `tick` in the current folder (tick.c, job.py)."""
    os.posix_spawn("./tick", ["tick", str(_LIVES_S)], {})


def forks(rate_hz, ended):
    repeat(rate_hz, fork, ended)


def execs(rate_hz, ended):
    repeat(rate_hz, start, ended)


def churn(rate_hz, ended):
    """Forks and programs in turn."""
    turns = itertools.cycle((fork, start))

    def once():
        next(turns)()

    repeat(rate_hz, once, ended)


def family(count, ended):
    """Children of the rank as loader workers are, each with threads that read and write files all the time; they end with the storm."""
    pids = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for number in range(count):
            pid = os.fork()
            if not pid:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _die_with_parent(0)
                for thread in range(_THREADS):
                    place = Path(folder) / f"{number}-{thread}"
                    threading.Thread(target=_touch_files, args=(place, 0.05), daemon=True).start()
                time.sleep(3600)
                os._exit(0)
            pids.append(pid)
        ended.wait()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def crowd(count, ended=None):
    """More than an observer looks at of one process: threads, and processes below it."""
    threading.stack_size(65536)
    for _ in range(count // 4):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    ours = os.getpid()
    for _ in range(count // 4):
        if not os.fork():
            _die_with_parent(ours)
            time.sleep(3600)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        _touch_files(Path(folder) / "file", 0.0005)


def _touch_files(path, every_s):
    while True:
        path.write_bytes(b"x")
        path.read_bytes()
        path.unlink()
        time.sleep(every_s)


def _die_with_parent(parent):
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if parent and os.getppid() != parent:  # it ended before it was asked to take us with it
        os._exit(0)


IN_THE_RANK = {"forks": forks, "execs": execs, "churn": churn, "family": family}

if __name__ == "__main__":
    _die_with_parent(0)  # a rank may be killed at any moment
    {"crowd": crowd}[sys.argv[1]](int(sys.argv[2]))
