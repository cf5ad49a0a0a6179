"""Measure how long a probe in a file would block every fork of the host, before and while it is attached.

To insert a probe into a page of a file, or to remove it, the kernel visits every mapping of that
page, and no process of the host can fork meanwhile (`dup_mmap_sem` in register_for_each_vma). Any
user can map a page of a library 60,000 times in each of his processes.

A visit that writes a breakpoint takes 3 to 8 us, one that does not 0.3 us (Linux 6.18,
`tests/kernel/test_mapped_too_often.py` prints both). So a trial comes first: a probe on the same
page that is restricted to this process. The kernel visits every mapping for it and changes none,
and its CPU time tells how many there are, whatever file system or container they are mapped
through. Where the trial takes more than `TRIAL_MOST_S` the probe is not attached. Only for kernels
with uprobe_multi; before Linux 6.6 each probe is timed as it is inserted (uprobes.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.probes.base import patience, room
from rankscope.probes.bpf.functions import uprobes
from rankscope.probes.bpf.functions.uprobes import MappedByOthers, MappedTooOften
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import group_by, interleave
from rankscope.probes.host.namespaces import owner_uid
from rankscope.probes.host.procfs import ROOT

# CPU seconds of a trial: the 0.1 s that forks may wait, times the cost of a visit without a
# breakpoint over one with (0.3 us over 3-8 us). About 13,000 mappings; a host of 64 ranks with 32
# workers each has 2,112.
TRIAL_MOST_S = 0.004
# Wall seconds, twice in a row: a process that holds the lock of its address space again and again
# delays each visit. With 13 programs on 2 CPUs a trial took up to 0.06 s without such a process, up
# to 0.75 s with one.
WAITS_MOST_S = 0.2
# Interrupts and another machine on the hypervisor count as CPU time of what they interrupt (12 ms
# in a busy emulator), and the first trial over 2,112 processes finds cold CPU caches (2.9 ms, later
# ones 0.3 to 0.9). All of that only adds, so the shortest of a few trials counts, unless one took
# so much longer that only visits explain it.
_TRIES, _CLEARLY_S = 4, 10 * TRIAL_MOST_S
_NICE = -10  # before ordinary work, after real-time work
LOOKS_EVERY_S = 0.25
_LOOKS_ANYWAY_S = 10.0  # mappings of another file may have become mappings of this one
_GROWN = 5_000  # mappings of the whole host since the last look
_DUTY = 20  # a look is followed by a pause of so many times its length
_MAPPINGS = "sys/kernel/slab/vm_area_struct/objects"
_PAGE_BYTES = 4096
_AT_ONCE = 8  # links closed in parallel: each waits for the kernel's grace periods
_REFUSED_MOST = 4096  # files
_TOO_OFTEN = "a page of it is mapped so often that a probe in it would block every fork of this host"
# limits of the search for the user who maps the file so often
_SEARCH_S, _SEARCH_BYTES, _CHUNK_BYTES = 1.0, 1 << 24, 1 << 18
_SUSPECT = 1_000  # mappings of one file in one process that make its user the likely cause


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Descriptors of removed probes, and a phrase naming the user who maps the file so often."""

    links: tuple[int, ...] = ()
    by: str = ""


@dataclass(frozen=True, slots=True)
class _Took:
    """Cost of visiting all mappings: CPU seconds (proportional to their number) and wall seconds
    (with lock waits).
    """

    cpu_s: float
    wall_s: float

    def is_short(self, waits_most_s: float) -> bool:
        """Tell whether a probe may be attached at this cost; `waits_most_s`: limit of the wall seconds."""
        return self.cpu_s <= TRIAL_MOST_S and self.wall_s <= waits_most_s

    def beyond(self, usual_s: float) -> _Took:
        """Return the cost without `usual_s`, the CPU seconds of a trial that visits no mapping; never negative."""
        return _Took(max(self.cpu_s - usual_s, 0.0), self.wall_s)


@contextlib.contextmanager
def going_first() -> Iterator[None]:
    """Raise this thread's priority, since forks of the whole host wait for it."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    _set_nice(min(usual, _NICE))
    try:
        yield
    finally:
        _set_nice(usual)


def _set_nice(nice: int) -> None:
    """Set this thread's nice value, if permitted. Never raises."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


@dataclass(slots=True)
class Trials:
    """Measures the cost of probes by trial. Close it when all is detached."""

    root: Path = ROOT
    _closing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_AT_ONCE, initializer=_set_nice, initargs=(_NICE,))
    )

    def need_few(
        self,
        program_fd: int,
        path: Path,
        offsets: Sequence[int],
        counters: Mapping[int, int],
        waits_most_s: float = WAITS_MOST_S,
    ) -> None:
        """Raise MappedTooOften where a page of these offsets is mapped too often.

        Raises OSError where the kernel refuses the trial.
        """
        of_pages = tuple({offset // _PAGE_BYTES: offset for offset in offsets}.values())
        trial = partial(self._trial, program_fd, path, counters)
        if trial(of_pages).is_short(waits_most_s):
            return
        usual_s = self._usual_s(program_fd)
        for offset in of_pages:
            shortest = self._shortest(partial(trial, (offset,)), usual_s, waits_most_s)
            if not shortest.is_short(waits_most_s):
                raise MappedTooOften(
                    f"{_TOO_OFTEN} (visiting all mappings took {shortest.wall_s:.2f} s, {shortest.cpu_s * 1e3:.1f} ms of a CPU; "
                    f"limits: {WAITS_MOST_S:g} s, {TRIAL_MOST_S * 1e3:g} ms)"
                )

    def _shortest(self, trial: Callable[[], _Took], usual_s: float, waits_most_s: float) -> _Took:
        """Repeat `trial` up to `_TRIES` times, until short or clearly too long; return the least costs seen.

        CPU and wall seconds are minimized separately. `usual_s`: CPU seconds of a trial that visits no
        mapping, subtracted from each. The first trial also waits for the kernel's grace period.
        """
        shortest = _Took(math.inf, math.inf)
        for _ in range(_TRIES):
            one = trial().beyond(usual_s)
            shortest = _Took(min(shortest.cpu_s, one.cpu_s), min(shortest.wall_s, one.wall_s))
            if shortest.is_short(waits_most_s) or one.cpu_s > _CLEARLY_S:
                break
        return shortest

    def _usual_s(self, program_fd: int) -> float:
        """Measure the CPU seconds of a trial in a file that no process maps; 0 where the kernel refuses it.

        12 ms on an emulated CPU, more than the limit.
        """
        nobody = os.memfd_create("rankscope-nobody")
        try:
            os.ftruncate(nobody, _PAGE_BYTES)
            return min(self._trial(program_fd, Path(f"/proc/self/fd/{nobody}"), {}, (0,)).cpu_s for _ in range(_TRIES))
        except OSError:
            return 0.0
        finally:
            os.close(nobody)

    def _trial(self, program_fd: int, path: Path, counters: Mapping[int, int], offsets: Sequence[int]) -> _Took:
        """Attach probes restricted to this process, and detach them; return what attaching cost. Raises OSError.

        Detaching takes longer, and is left to other threads.
        """
        with going_first():
            began = time.thread_time(), time.monotonic()
            links = uprobes.attach_many(program_fd, path, offsets, counters=counters, pid=os.getpid())
            took = _Took(time.thread_time() - began[0], time.monotonic() - began[1])
        for link in links:
            try:
                self._closing.submit(os.close, link)
            except RuntimeError as error:
                if not room.refused_a_thread(error):
                    raise
                os.close(link)
        return took

    def close(self) -> None:
        """Wait until every trial is over."""
        self._closing.shutdown()


class Refused:
    """Files that a trial has found mapped too often.

    A trial, and its end, delay every fork for as long as it measures, so it is not repeated while a process is found
    that maps the file so often. Known to this process and to forks made later, such as each observer of the service.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[bytes, bytes], None] = {}

    def add(self, path: Path) -> None:
        """Remember an open file (/proc/self/fd/N); beyond `_REFUSED_MOST` files the oldest is dropped."""
        if (file := _file_of(path)) is not None:
            self._files[file] = None
            if len(self._files) > _REFUSED_MOST:
                del self._files[next(iter(self._files))]

    def check(self, path: Path, root: Path) -> None:
        """Raise MappedTooOften for a file that was refused and is still mapped so often; else forget that it was."""
        if self._files and (file := _file_of(path)) in self._files:
            if by := mapped_most_by(inode_of(path), root):
                raise MappedTooOften(f"{_TOO_OFTEN}{by}")
            self._files.pop(file, None)


REFUSED = Refused()


@dataclass(slots=True)
class Growth:
    """Decides when to check attached files again: any user may map a page more often while a probe
    is in it.
    """

    root: Path = ROOT
    _had: int = 0
    _looked_s: float = float("-inf")
    _not_before_s: float = float("-inf")

    def is_due(self) -> bool:
        """Tell whether the host has many more mappings than at the last check, or that was long
        ago.
        """
        now_s = time.monotonic()
        if now_s < self._not_before_s:
            return False
        try:
            has = int(procfs.read_file(str(self.root / _MAPPINGS), 64).split()[0])
        except (OSError, ValueError, IndexError):
            return True
        if has - self._had < _GROWN and now_s - self._looked_s < _LOOKS_ANYWAY_S:
            self._had = min(self._had, has)
            return False
        self._had = has
        return True

    def looked(self, took_s: float) -> None:
        """Record that a check has ended, which took `took_s` CPU seconds."""
        self._looked_s = time.monotonic()
        self._not_before_s = self._looked_s + _DUTY * took_s


def inode_of(path: Path) -> bytes:
    """Return the inode number, as decimal digits, of an open file (/proc/self/fd/N); empty where unknown.

    Read from fdinfo: its file system might not answer.
    """
    return _told(path, b"ino")


def _file_of(path: Path) -> tuple[bytes, bytes] | None:
    """Identify an open file by mount and inode number; None where unknown (before Linux 5.14)."""
    found = _told(path, b"mnt_id"), _told(path, b"ino")
    return found if all(found) else None


def _told(path: Path, name: bytes) -> bytes:
    """Return the digits of a line of an open file's fdinfo; empty where there are none."""
    try:
        content = (Path("/proc/self/fdinfo") / path.name).read_bytes()
    except OSError:
        return b""
    found = re.search(rb"^" + name + rb":\t(\d+)$", content, re.MULTILINE)
    return found[1] if found else b""


def mapped_most_by(inode: bytes, root: Path) -> str:
    """Search for the user who maps the file most often, each user's processes in turn; return a
    phrase, empty where not found in time.

    For example `: by user 1000, 60000 times in one process`.
    """
    if not inode:
        return ""
    until_s, most = time.monotonic() + _SEARCH_S, Counter[int]()
    for pid in interleave(group_by(_pids(root), partial(_seems_of, root))):
        if time.monotonic() >= until_s:
            break
        with contextlib.suppress(OSError):
            count = patience.ask(pid, _times_mapped, pid, inode, until_s, root)
            if count >= _SUSPECT:
                user = owner_uid(pid, root)
                most[user] = max(most[user], count)
    if not most:
        return ""
    user, count = most.most_common(1)[0]
    return f": by user {user}, {count} times in one process"


def need_one_user(path: Path, root: Path) -> None:
    """Raise MappedByOthers unless all processes that map an open file belong to one user (root
    aside).

    Also raised where that cannot be established in time.
    """
    inode, until_s, users = inode_of(path), time.monotonic() + _SEARCH_S, set[int]()
    for pid in _pids(root) if inode else ():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (user := owner_uid(pid, root)) in (0, *users):
                continue
            try:
                maps_it = patience.ask(pid, _times_mapped, pid, inode, until_s, root, 1) > 0
            except TimeoutError:  # no answer: assume the worst
                maps_it = True
            if maps_it:
                users.add(user)
    if not inode or time.monotonic() >= until_s or len(users) > 1:
        known = (
            f"users {', '.join(map(str, sorted(users)))} map it"
            if len(users) > 1
            else "the users that map it are unknown"
        )
        raise MappedByOthers(f"{known}, and no guard runs on this host to prevent one of them from blocking every fork")


def _seems_of(root: Path, pid: int) -> int:
    """Return the uid that owns a process's folder in /proc; -1 where it cannot be read.

    A fifth of the cost of `owner_uid`, but a process that may not be traced seems to be root's.
    """
    with contextlib.suppress(OSError):
        return Path(procfs.proc_path(root, pid)).stat().st_uid
    return -1


def _pids(root: Path) -> Iterator[int]:
    """Yield the pids of all processes."""
    return (int(one.name) for one in (root / "proc").iterdir() if one.name.isdigit())


def _times_mapped(pid: int, inode: bytes, until_s: float, root: Path, enough: int = 1 << 30) -> int:
    """Count a process's mappings of the file with this inode number. Raises OSError.

    At least as many where the count reached `enough`, the time `until_s` (CLOCK_MONOTONIC) or a limit of bytes.
    """
    wanted, count, rest, left = re.compile(rb" [0-9a-f]+:[0-9a-f]+ " + inode + rb" "), 0, b"", _SEARCH_BYTES
    with open(procfs.proc_path(root, pid, "maps"), "rb", buffering=0) as file:  # noqa: PTH123 - called through patience.ask
        while left > 0 and count < enough and time.monotonic() < until_s and (data := file.read(_CHUNK_BYTES)):
            left -= len(data)
            whole, _, rest = (rest + data).rpartition(b"\n")
            count += len(wanted.findall(whole))
    return count
