"""A prepared look: its child has loaded, found and named all that a window needs, and waits for an order to begin.

Loading takes seconds, and a fault may be over by then. Nothing is attached meanwhile: it costs the
ranks nothing, and this host the memory of two forks of the service. It observes the ranks that it
was prepared for, and serves one look.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankscope.diagnose.service.limits import RESIDENT_BYTES
from rankscope.diagnose.service.looks import look
from rankscope.diagnose.service.looks.look import Look, Telling, Wanted
from rankscope.diagnose.service.signals import end
from rankscope.probes.host import procfs

if TYPE_CHECKING:
    from rankscope.observer.recorder import Order
    from rankscope.observer.window.folder import Window

_REFUSED_MOST = 256  # sets of ranks; jobs come and go
_LOOKS_EVERY_S = 5.0  # interval of checking that the observer is alive


@dataclass(slots=True)
class Prepared:
    """A prepared look at the ranks `pids` of `job`. Close it, or begin its look."""

    job: str
    pids: frozenset[int]
    _pid: int
    _line: socket.socket
    _result: int

    def begin(self, wanted: Wanted) -> Look | None:
        """Begin its look; None where the child has ended. Call at most once."""
        begun_s = time.monotonic()
        try:
            self._line.sendall(pickle.dumps(wanted))
        except OSError:
            self.close()
            return None
        self._line.close()
        return Look(wanted.alarm, self._pid, self._result, begun_s, begun_s + wanted.longest_s, wanted.share)

    @property
    def is_ready(self) -> bool:
        """True if everything is loaded."""
        try:
            return bool(self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    @property
    def has_ended(self) -> bool:
        """True if its child has ended."""
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def memory_bytes(self) -> int:
        """Return the memory of its processes; shared memory counts in part."""
        return sum(map(procfs.proportional_bytes, (self._pid, *procfs.children(self._pid))))

    def close(self) -> None:
        """Close it: the child ends with its socket, or is killed if it is busy."""
        self._line.close()
        os.close(self._result)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            if self.has_ended:
                return
            time.sleep(0.01)
        end(self._pid)


@dataclass(slots=True)
class Standby:
    """Maintains one prepared look: for a job with an agreed look, else for the job with most ranks here.

    `_refused`: ranks without one, as it ended by itself or used too much memory.
    """

    _refused: dict[frozenset[int], None] = field(default_factory=dict)
    _prepared: Prepared | None = None

    def keep(self, jobs: Mapping[str, frozenset[int]], agreed: Sequence[str] = ()) -> None:
        """Prepare a look for the soonest job of `agreed`, else the one with most ranks; anew if its ranks changed.

        Call regularly with the pids of each job's ranks. Ranks whose prepared look ended by itself or used too much
        memory get none again.
        """
        soonest = next((job for job in agreed if job in jobs), None)
        job = soonest or max(jobs, key=lambda one: len(jobs[one]), default=None)
        pids = jobs[job] if job is not None else frozenset()
        kept = self._prepared
        if kept is not None and (kept.job != job or kept.pids != pids):
            self.close()
        elif kept is not None and kept.has_ended:
            self._refuse()
        if job is not None and self._prepared is None and pids not in self._refused:
            # The next call tries again; a look needed meanwhile loads by itself.
            with contextlib.suppress(OSError):
                self._prepared = _prepare(job, pids)

    def is_ready(self, job: str, pids: frozenset[int]) -> bool:
        """Tell whether a look at these ranks would begin at once."""
        kept = self._prepared
        return kept is not None and (kept.job, kept.pids) == (job, pids) and kept.is_ready

    def is_refused(self, pids: frozenset[int]) -> bool:
        """Tell whether nothing is prepared for these ranks any more."""
        return pids in self._refused

    def weigh(self, beside_bytes: int) -> None:
        """Close the prepared look, for good, if it uses too much memory together with the service (`beside_bytes`)."""
        if self._prepared is not None and beside_bytes + self._prepared.memory_bytes() > RESIDENT_BYTES:
            self._refuse()

    def _refuse(self) -> None:
        """Close the prepared look, and prepare none for its ranks again."""
        if self._prepared is not None:
            self._refused[self._prepared.pids] = None
            if len(self._refused) > _REFUSED_MOST:
                del self._refused[next(iter(self._refused))]
            self.close()

    def begin(self, wanted: Wanted, pids: frozenset[int]) -> Look:
        """Begin a look at these ranks: the prepared one, else one that loads first. Raises OSError."""
        kept = self._prepared
        if kept is not None and kept.job == wanted.alarm.job and not wanted.only_judge:
            if kept.pids == pids:  # one that is still loading is ahead of a new one
                self._prepared = None
                begun = kept.begin(wanted)
                if begun is not None:
                    return begun
            else:
                self.close()
        return look.begin(wanted)

    def close(self) -> None:
        """Close the prepared look."""
        if self._prepared is not None:
            self._prepared.close()
            self._prepared = None


def _prepare(job: str, pids: frozenset[int]) -> Prepared:
    """Fork a child that prepares a look at these ranks of a job and waits for its order. Raises OSError."""
    ours, theirs = socket.socketpair()

    def work(result: int) -> None:
        """Prepare the look in the child, with only its own descriptors open."""
        _hold_only(theirs.fileno(), result)
        _stand_by(job, theirs, result)

    try:
        pid, result = look.forked_with_result("look", work)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Prepared(job, pids, pid, ours, result)


def _stand(nice: int) -> None:
    """Set the nice value of this process; keep the present one if that is not permitted."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)


class _ObserverGone(Exception):
    """The prepared observer has ended before its look began."""


def _lives(observer: int) -> bool:
    """Tell whether a child of this process is alive; its pid cannot be reused before it is waited for."""
    try:
        return procfs.read_stat(observer).state not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError):
        return True  # checked again the next time


def _hold_only(*kept: int) -> None:
    """Close all descriptors except `kept` and the standard streams.

    Otherwise probes released by the service would remain with this child.
    """
    last = 3
    for one in sorted(kept):
        os.closerange(last, one)
        last = one + 1
    os.closerange(last, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _stand_by(job: str, line: socket.socket, result: int) -> None:
    """Prepare an observer, wait for the order (a pickled `Wanted`) on `line`, and write the verdict to `result`.

    Runs in the child. A byte on `line` tells the service that all is prepared.
    """
    from rankscope.observer.recorder import STANDING_BY, Order, RecordOptions, record, stand_by

    telling, usual = Telling(result), os.getpriority(os.PRIO_PROCESS, 0)
    wanted: list[Wanted] = []
    windows: list[Window] = []

    def orders(observer: int) -> Order:
        """Wait for the order, read it, and return it for the observer. Raises _ObserverGone; EOFError if it is closed."""
        while not select.select([line], [], [], _LOOKS_EVERY_S)[0]:
            # When memory is short the kernel kills observers first: a look needed then loads by
            # itself.
            if not _lives(observer):
                raise _ObserverGone
        # as an observer: with the priority of ranks that use every core the window would begin late
        _stand(min(usual, -10))
        with line.makefile("rb") as asked:
            # From the process that forked this one and has the same rights. EOFError: it has closed
            # the look.
            wanted.append(pickle.load(asked))
        if not _lives(observer):
            raise _ObserverGone
        options = look.options_of(wanted[0])
        return Order(options.window_s, options.begin_at)

    def say(text: str) -> None:
        """Handle a progress message of the observer; tell the service when all is prepared."""
        if text == STANDING_BY:
            with contextlib.suppress(OSError):  # the order was given before
                line.send(b"!")
        elif wanted:
            _stand(usual)  # everything is attached
        telling.heard(text)

    def observed() -> Window:
        """Return the recorded window; record it now if the prepared observer was gone. Raises what failed instead."""
        # ended since the last check: the look is not lost, and loads now
        if isinstance(failed, _ObserverGone):
            return record(look.options_of(wanted[0]), say)[0].window
        if failed is not None:
            raise failed
        return windows[0]

    failed: Exception | None = None
    try:
        stand_by(RecordOptions(job=job), orders, windows.append, say)
    except Exception as error:
        if not wanted:
            return
        failed = error
    telling.judged(wanted[0], observed)
