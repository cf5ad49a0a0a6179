"""Reads below /proc that a hostile process cannot block for ever.

The owner of a process can block every reader of it in the kernel, root too. An exec that waits for
a file server of the owner's own (FUSE) holds a lock that stat, exe, fd, ns, stack, maps, environ
and mem take; a page of such a file that one thread reads while another maps something holds the
lock of the address space. So such reads run on threads that can be abandoned:

caller                                worker, reused for the next piece of work
patiently(work)  ─── work ─────────►  work(): each read names its process first, ask(pid, call, …)
     checks it now and then
     the same read for too long:      abandoned for as long as the kernel blocks it; the process is `Silent` until it returns
     work() on another worker

Work given to `patiently` is called again after such a read, so it must be restartable: it goes on,
or does the same once more. A read outside of `patiently` gets a worker of its own (about 20 µs); on
a worker it costs 0.5 µs more than without.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

# Seconds for the first silent process; each further one is given half as long, so that all together
# cost little more than two seconds. A healthy one answers in microseconds; while it forks with 100
# GB, its memory blocks readers for tenths of a second.
DEADLINE_S = 1.0
_LEAST_S = 0.01
# silent processes of one user; then none of his is read any more, so that threads remain for others
_EACH = 32
_MOST = 256  # abandoned threads; then nothing is read any more
_MARK_S = 60.0  # seconds for which another process's report of silence counts
_FUTEX = (b"202", b"98")  # number of the call on x86-64 and aarch64
SILENT = "its memory does not respond: reading its files in /proc would hang"

_Result = TypeVar("_Result")


class Silent(TimeoutError):
    """A process blocks its readers. An OSError: the data cannot be read."""

    def __init__(self, pid: int) -> None:
        super().__init__(errno.ETIMEDOUT, SILENT)
        self.pid = pid


class _LeftBehind(BaseException):
    """Ends an abandoned worker that returns."""


class _Worker(threading.Thread):
    """A thread that runs pieces of work one after another, and is abandoned when a process blocks it."""

    def __init__(self) -> None:
        super().__init__(name="patient", daemon=True)
        self.work: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        # pid whose read it waits for, and start (time.monotonic)
        self.asked: tuple[int, float] | None = None
        self.left = False
        self.go, self.done = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.done.acquire()

    def run(self) -> None:
        """Run `work` each time `go` is released, and release `done`; end where there is none, or when abandoned."""
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
# pid -> its blocked worker, or (reported by another process) until when that counts
_silent: dict[int, _Worker | float] = {}
_owners: dict[int, str] = {}  # pid -> user, of those


def ask(pid: int, call: Callable[..., _Result], *arguments: object) -> _Result:
    """Call `call`, a read of the kernel's data on process `pid`, and return its result.

    Raises Silent where that does not answer, and what `call` raises.
    """
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
    """Run `work` on a worker and return its result, restarting it when a process blocks it.

    That process is silent from then on. Raises what `work` raises; OSError where no thread is
    available.
    """
    if getattr(_mine, "worker", None) is not None:
        return work()
    while True:
        worker = _worker()
        worker.work = work
        worker.go.release()
        try:
            came = _wait(worker)
        except BaseException:  # Ctrl-C: nobody wants the worker's result
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
                del error  # it refers to this frame
        return result  # type: ignore[no-any-return]


def _worker() -> _Worker:
    """Return an idle worker, else a new one. Raises OSError (EAGAIN) where no thread can be started."""
    while _idle:
        worker = _idle.pop()
        if worker.is_alive():
            return worker
    worker = _Worker()
    try:
        worker.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "no thread could be started") from error
    return worker


def _wait(worker: _Worker) -> bool:
    """Wait for a worker; return whether its work is done, else it was abandoned.

    In the latter case the process that it reads is silent from then on.
    """
    while True:
        limit_s = max(DEADLINE_S / 2 ** min(len(silent()), 64), _LEAST_S)
        if worker.done.acquire(timeout=limit_s / 2):
            return True
        asked = worker.asked
        if asked is None or time.monotonic() - asked[1] < limit_s or not _is_kept(worker):
            continue
        worker.left = True
        if worker.done.acquire(blocking=False):  # it returned just now
            worker.left = False
            return True
        pid = asked[0]
        _owners[pid] = _owner(pid)
        _silent[pid] = worker
        return False


def _is_kept(worker: _Worker) -> bool:
    """Tell whether the kernel blocks a worker.

    On a busy host it may just be waiting for a processor, or for this interpreter's lock.
    """
    try:
        with open(f"/proc/self/task/{worker.native_id}/syscall", "rb") as file:  # noqa: PTH123
            word = file.read(64).split()[0]
    except (OSError, IndexError):
        return True
    return word not in (b"running", *_FUTEX)


def is_silent(pid: int) -> bool:
    """Return whether a process counts as one that blocks reads of its /proc files.

    Once a user has `_EACH` such processes, all of that user's but ourselves count; once there are `_MOST`,
    all do.
    """
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
    """List the silent processes, after dropping those whose blocked read has returned or whose mark has expired."""
    return tuple(pid for pid, known in list(_silent.items()) if _holds(pid, known))


def _holds(pid: int, known: _Worker | float) -> bool:
    """Tell whether a process is still silent; forget it if not.

    `known`: the worker that it blocks, or until when (time.monotonic) another process's report counts.
    """
    if known > time.monotonic() if isinstance(known, float) else known.is_alive():
        return True
    _silent.pop(pid, None)
    _owners.pop(pid, None)
    return False


def mark_silent(pids: Iterable[int]) -> None:
    """Mark processes as silent for some time, as another process reported."""
    for pid in pids:
        if not is_silent(pid) and len(_silent) < _MOST:
            _owners[pid] = _owner(pid)
            _silent[pid] = time.monotonic() + _MARK_S


def workers() -> tuple[int, ...]:
    """List the kernel's thread ids of idle workers, for a caller that raises its own priority and
    theirs.
    """
    return tuple(worker.native_id for worker in list(_idle) if worker.native_id is not None)


def _owner(pid: int) -> str:
    """Return the user of a process; for root, which may be in many containers, add the cgroup.

    Neither file can be blocked by its process.
    """
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
    """Reset after a fork: the child has no workers; silent processes are remembered for some time."""
    global _mine  # noqa: PLW0603
    _mine = threading.local()
    _idle.clear()
    until = time.monotonic() + _MARK_S
    for pid in list(_silent):
        _silent[pid] = until


os.register_at_fork(after_in_child=_forget)
