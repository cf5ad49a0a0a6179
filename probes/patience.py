"""Nobody waits without end for what a process says of itself below /proc.

Whoever owns a process can keep all who read of it waiting in the kernel, root too. An exec that waits for a file server of the
owner's own (FUSE) holds a lock that stat, exe, fd, ns, stack, maps, environ and mem take; a page of such a file that one thread reads while
another maps something holds the lock of the address space. So such reads are made on threads that can be left behind:

  caller                                worker, kept for the next piece of work
  patiently(work)  ─── work ─────────►  work(): each read says first whose it is, ask(pid, call, …)
       looks at it now and then
       the same read for too long:      left behind for as long as the kernel keeps it; the process is `Silent` until it comes back
       work() on another worker

What is handed to `patiently` is begun again where it stood still, so it must be such that it can be: it goes on, or does the same once
more. A read that nobody handed over gets a worker of its own (about 20 µs); on a worker it costs 0.5 µs more than without.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

# For the first process that is silent; each further one is waited for half as long, so that all together cost two seconds and little more.
# A healthy one answers in microseconds; while it forks with 100 GB, its memory keeps readers for tenths of a second.
DEADLINE_S = 1.0
_LEAST_S = 0.01
_EACH = 32  # of one user: then nothing of his is asked any more, so that the threads that may be left behind last for others
_MOST = 256  # threads left behind; then nobody is asked any more
_TOLD_S = 60.0  # for so long somebody else's word counts that a process is silent
_FUTEX = (b"202", b"98")  # the number of the call on x86-64 and aarch64
SILENT = "its memory does not answer: who reads of it in /proc is kept waiting"

_Result = TypeVar("_Result")


class Silent(TimeoutError):
    """A process keeps those waiting who read of it. An OSError: what cannot be read."""

    def __init__(self, pid: int) -> None:
        super().__init__(errno.ETIMEDOUT, SILENT)
        self.pid = pid


class _LeftBehind(BaseException):
    """Ends a worker that comes back when nobody waits for it any more."""


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="patient", daemon=True)
        self.work: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.asked: tuple[int, float] | None = None  # whose answer it waits for, and since when (time.monotonic)
        self.left = False
        self.go, self.done = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.done.acquire()

    def run(self) -> None:
        _mine.worker = self
        while True:
            self.go.acquire()
            work, self.work = self.work, None
            if work is None:
                return
            try:
                self.result, self.error = work(), None
            except _LeftBehind:
                return
            except BaseException as error:
                self.result, self.error = None, error
            del work
            self.done.release()


_mine = threading.local()
_idle: list[_Worker] = []
_silent: dict[int, _Worker | float] = {}  # by pid: who waits for it, or (somebody else said so) until when that counts
_owners: dict[int, str] = {}  # of those


def ask(pid: int, call: Callable[..., _Result], *arguments: object) -> _Result:
    """What `call` returns, a read of what the kernel says of a process. Silent where that does not answer; what it raises."""
    worker: _Worker | None = getattr(_mine, "worker", None)
    if worker is None:
        return patiently(lambda: ask(pid, call, *arguments))
    if _silent and is_silent(pid):
        raise Silent(pid)
    worker.asked = pid, time.monotonic()
    try:
        return call(*arguments)
    finally:
        worker.asked = None
        if worker.left:
            raise _LeftBehind


def patiently(work: Callable[[], _Result]) -> _Result:
    """What `work` returns; it is begun again where a process stood in its way, which is silent from then on. Raises what it raises.

    OSError where there is no thread to be had.
    """
    if getattr(_mine, "worker", None) is not None:
        return work()
    while True:
        worker = _worker()
        worker.work = work
        worker.go.release()
        try:
            came = _wait(worker)
        except BaseException:  # Ctrl-C: whatever it still does, nobody wants it
            worker.left = True
            raise
        if not came:
            continue
        result, error = worker.result, worker.error
        worker.result = worker.error = None
        _idle.append(worker)
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame
        return result  # type: ignore[no-any-return]


def _worker() -> _Worker:
    while _idle:
        worker = _idle.pop()
        if worker.is_alive():
            return worker
    worker = _Worker()
    try:
        worker.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "no thread to be had") from error
    return worker


def _wait(worker: _Worker) -> bool:
    """Whether its work is done; else it was left behind."""
    while True:
        limit_s = max(DEADLINE_S / 2 ** min(len(silent()), 64), _LEAST_S)
        if worker.done.acquire(timeout=limit_s / 2):
            return True
        asked = worker.asked
        if asked is None or time.monotonic() - asked[1] < limit_s or not _is_kept(worker):
            continue
        worker.left = True
        if worker.done.acquire(blocking=False):  # it came back at the last moment
            worker.left = False
            return True
        pid = asked[0]
        _owners[pid] = _owner(pid)
        _silent[pid] = worker
        return False


def _is_kept(worker: _Worker) -> bool:
    """Whether the kernel keeps it: on a busy host it may just be waiting for a processor, or for this interpreter's lock."""
    try:
        with open(f"/proc/self/task/{worker.native_id}/syscall", "rb") as file:  # noqa: PTH123
            word = file.read(64).split()[0]
    except (OSError, IndexError):
        return True
    return word not in (b"running", *_FUTEX)


def is_silent(pid: int) -> bool:
    """Whether a process does not answer, as far as is known; of others of its user no more is asked once there are some."""
    known = _silent.get(pid)
    if known is not None and _holds(pid, known):
        return True
    if len(_silent) >= _MOST:
        return True
    if len(_silent) < _EACH or pid == os.getpid():
        return False
    owner = _owner(pid)
    return sum(one == owner for one in list(_owners.values())) >= _EACH


def silent() -> tuple[int, ...]:
    """Processes that do not answer. Who answers again, or has ended, is forgotten."""
    return tuple(pid for pid, known in list(_silent.items()) if _holds(pid, known))


def _holds(pid: int, known: _Worker | float) -> bool:
    if known > time.monotonic() if isinstance(known, float) else known.is_alive():
        return True
    _silent.pop(pid, None)
    _owners.pop(pid, None)
    return False


def told_silent(pids: Iterable[int]) -> None:
    """Somebody else waited for these in vain: nobody here need do so for some time."""
    for pid in pids:
        if not is_silent(pid) and len(_silent) < _MOST:
            _owners[pid] = _owner(pid)
            _silent[pid] = time.monotonic() + _TOLD_S


def workers() -> tuple[int, ...]:
    """Threads (of the kernel) that stand ready: whoever goes before others takes them along."""
    return tuple(worker.native_id for worker in list(_idle) if worker.native_id is not None)


def _owner(pid: int) -> str:
    """The user of a process, and of root's, which may be in many containers, where it runs. Neither file keeps anybody waiting."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - each of a host's processes may be asked
            user = next((line.split()[1].decode() for line in file if line.startswith(b"Uid:")), "")
        if user != "0":
            return user
        with open(f"/proc/{pid}/cgroup", "rb") as file:  # noqa: PTH123
            return f"{user} {file.read(4096)!r}"
    except (OSError, ValueError, IndexError):
        return f"pid {pid}"


def _forget() -> None:
    """In a fork: threads stay where they were, what is known of others holds for some time."""
    global _mine  # noqa: PLW0603
    _mine = threading.local()
    _idle.clear()
    until = time.monotonic() + _TOLD_S
    for pid in list(_silent):
        _silent[pid] = until


os.register_at_fork(after_in_child=_forget)
