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
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.probes.base import room
from rankscope.probes.bpf.functions import uprobes
from rankscope.probes.bpf.functions.mappers import TOO_OFTEN
from rankscope.probes.bpf.functions.uprobes import MappedTooOften
from rankscope.probes.host import procfs
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
                    f"{TOO_OFTEN} (visiting all mappings took {shortest.wall_s:.2f} s, {shortest.cpu_s * 1e3:.1f} ms of a CPU; "
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
