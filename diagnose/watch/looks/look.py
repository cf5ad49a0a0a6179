"""A closer look: one window of one job, judged, in a child of the service.

The child is forked, and what a window takes of memory goes with it. It
ends with the service (PR_SET_PDEATHSIG), with its time, or by itself; its probes hang on descriptors and end with it. The verdict comes
back in a file without a name (memfd), so nothing is left on a disk whoever is killed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.as_json import to_json
from rankscope.diagnose.watch.alarms import Alarm
from rankscope.diagnose.watch.signals import as_usual, end, end_with
from rankscope.probes.errors import RankscopeError
from rankscope.probes.mapped.reader import READER

if TYPE_CHECKING:
    from rankscope.diagnose.watch.hosts.share import Share
    from rankscope.observer.recorder import RecordOptions
    from rankscope.observer.window.folder import Window

_GRACE_S = 60.0  # for loading, judging and writing beside the window itself
_STEPS = 20  # of a window
_LEAST_S, _MOST_S = 5.0, 60.0
# Of a job that stands still: what is silent for STALL_SECONDS does, and what makes its steps is seen to within a second.
STANDSTILL_S = limits.STALL_SECONDS + 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look told. `verdict`: JSON of schema rankscope.verdict/1, None where there is none; `trouble`: why. `after_s`: so long
    after the look was asked for its window began, None where it did not; `took_s`: all of it; `kept`: its name in the history; `share`:
    what it has in common with looks of other hosts; `judged_by`: which of them judged, '' where this one did; `broken`: where another
    does, why this host should be drained by its own window."""

    alarm: Alarm
    verdict: dict[str, Any] | None
    trouble: str
    after_s: float | None
    took_s: float = 0.0
    kept: str = ""
    share: Share | None = None
    judged_by: str = ""
    broken: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether another host judges what was seen, and has not yet."""
        return self.verdict is None and self.share is not None and not self.share.judges

    @property
    def accuses(self) -> bool:
        """Whether it named somebody."""
        return bool(self.verdict and self.verdict["suspects"])


@dataclass(slots=True)
class Look:
    """A window that runs. Ask `done` until it says what was seen."""

    alarm: Alarm
    pid: int
    result: int  # descriptor
    begun_s: float
    deadline_s: float
    share: Share | None = None

    def done(self) -> Seen | None:
        """What was seen; None while it still runs. A child that is late is killed."""
        ended, _ = os.waitpid(self.pid, os.WNOHANG)
        if not ended and time.monotonic() < self.deadline_s:
            return None
        if not ended:
            self.kill()
            return self._read("it took too long, and was ended")
        return self._read("it ended without a word")

    def kill(self) -> None:
        """End it now."""
        end(self.pid)

    def _read(self, otherwise: str) -> Seen:
        try:
            with os.fdopen(self.result, "rb") as file:
                file.seek(0)
                said = json.loads(file.read(budgets.FILE_BYTES_MOST))
            after_s = None if said["window_s"] is None else float(said["window_s"]) - self.begun_s
            took_s = time.monotonic() - self.begun_s
            broken = tuple(map(str, said["broken"]))
            return Seen(
                self.alarm, said["verdict"], said["trouble"], after_s, took_s, said["kept"], self.share, broken=broken
            )
        except (OSError, ValueError, KeyError, TypeError):
            return Seen(self.alarm, None, otherwise, None, share=self.share)


def window_s(step_s: float | None, standstill: bool) -> float:
    """How long a window holds enough steps; where there are none, as long as shows that."""
    if standstill:
        return STANDSTILL_S
    return _LEAST_S if step_s is None else min(max(_STEPS * step_s, _LEAST_S), _MOST_S)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look at. `share`: it is one of the looks of all hosts; `only_judge`: of those that have been."""

    alarm: Alarm
    seconds: float
    history: Path
    share: Share | None = None
    only_judge: bool = False

    @property
    def longest_s(self) -> float:
        """After which it is ended."""
        return self.seconds + _GRACE_S + (self.share.longer_s if self.share is not None else 0.0)


def begin(wanted: Wanted) -> Look:
    """Fork a child that loads, observes and judges. OSError."""
    result = os.memfd_create("look", os.MFD_CLOEXEC)
    begun_s = time.monotonic()
    pid = forked(lambda: _look(wanted, result))
    return Look(wanted.alarm, pid, result, begun_s, begun_s + wanted.longest_s, wanted.share)


def forked(work: Callable[[], None]) -> int:
    """The pid of a child that does this, and ends with it, or with us. OSError."""
    READER.close()  # its process serves one of us
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            if not end_with(parent):
                os._exit(code)
            as_usual()
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def _look(wanted: Wanted, result: int) -> None:
    from rankscope.observer.recorder import record

    telling = Telling(result)
    telling.judged(wanted, lambda: record(options_of(wanted), telling.heard)[0].window)


def options_of(wanted: Wanted) -> RecordOptions:
    """How the window is taken."""
    # Here, in the child, as the service needs none of it.
    from rankscope.observer.recorder import RecordOptions

    if wanted.share is None:
        return RecordOptions(window_s=wanted.seconds, job=wanted.alarm.job, align_s=0.0)
    return RecordOptions(window_s=wanted.seconds, job=wanted.alarm.job, begin_at=wanted.share.trigger.start)


@dataclass(slots=True)
class Telling:
    """What the child of a look tells, in a file without a name. `began_s`: when its window did, CLOCK_MONOTONIC; `apart_s`: how far ahead
    of that the clock was when it began; `reads`: what it needs for judging."""

    result: int
    began_s: float | None = None
    apart_s: float | None = None
    reads: threading.Thread | None = None

    def heard(self, text: str) -> None:
        """Of who observes."""
        if self.reads is None and text.startswith("observing"):
            self.apart_s = time.time() - time.monotonic()
            # What judges is read while there is nothing to do but to wait.
            self.reads = threading.Thread(target=_read_what_judges, daemon=True)
            self.reads.start()

    def _begun(self, window: Window) -> Window:
        apart_s = self.apart_s if self.apart_s is not None else time.time() - time.monotonic()
        self.began_s = window.manifest.start - apart_s
        if self.reads is not None and self.reads.is_alive() and self.reads.native_id is not None:
            with contextlib.suppress(OSError):  # now it is waited for
                os.sched_setscheduler(self.reads.native_id, os.SCHED_OTHER, os.sched_param(0))
        return window

    def _ended_s(self, share: Share, window: Window) -> float | None:
        """When the interval was over in which all hosts looked, CLOCK_MONOTONIC, whatever the clock was set to since."""
        if self.began_s is None:
            return None
        trigger = share.trigger
        return self.began_s - share.pace.late_s(trigger, window.manifest.start) + trigger.seconds

    def judged(self, wanted: Wanted, observe: Callable[[], Window]) -> None:
        """Tell the verdict on what `observe` sees."""
        verdict: dict[str, Any] | None = None
        trouble = kept = ""
        broken: tuple[str, ...] = ()
        try:
            if wanted.share is not None:
                window = None if wanted.only_judge else self._begun(observe())
                ended_s = self._ended_s(wanted.share, window) if window is not None else None
                # Not before: it waits for what the idle thread reads, which on a busy host gets no CPU until `_begun`.
                from rankscope.diagnose.watch.hosts import judging

                outcome = judging.judge_with_others(wanted.share, wanted.history, window, ended_s)
                verdict, trouble, kept, broken = outcome.verdict, outcome.trouble, outcome.kept, outcome.broken
            else:
                verdict, trouble, kept = _by_itself(wanted, self._begun(observe()))
        except Exception as error:  # whatever goes wrong in here must not end the service: it says so
            trouble = f"{type(error).__name__}: {error}" if not isinstance(error, RankscopeError) else str(error)
        about = {"trouble": clean(trouble, 300), "window_s": self.began_s, "kept": kept, "broken": broken}
        said = {"verdict": verdict, **about}
        os.write(self.result, json.dumps(said).encode())


def _read_what_judges() -> None:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # this thread: the window is of the ranks, not of us
    importlib.import_module("rankscope.diagnose.solve.judge")


def _by_itself(wanted: Wanted, window: Window) -> tuple[dict[str, Any], str, str]:
    """The verdict on this host's window, what kept it from the history, and its name there."""
    from rankscope.diagnose.past.history import History
    from rankscope.diagnose.solve import judge

    store = History(wanted.history)
    found = judge.diagnose([window], (), wanted.alarm.job, store)
    trouble = kept = ""
    try:
        kept = store.add(window, found).name
    except RankscopeError as error:
        trouble = str(error)
    return json.loads(to_json(found)), trouble, kept
