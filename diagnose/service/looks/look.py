"""A look: one window of one job, recorded and judged in a child of the service.

The child is forked, so that the memory of a window is freed with it. It ends with the service
(PR_SET_PDEATHSIG), at its deadline, or by itself; its probes are held by descriptors and end with
it. The verdict returns in an anonymous file (memfd), so nothing is left on disk whichever process
is killed.
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
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.service.alarms import Alarm
from rankscope.diagnose.service.ledger.naming import SeenPause
from rankscope.diagnose.service.looks import pauses_seen
from rankscope.diagnose.service.signals import as_usual, end, end_with
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.mapped.reader import READER

if TYPE_CHECKING:
    from rankscope.diagnose.service.hosts.share import Share
    from rankscope.observer.recorder import RecordOptions
    from rankscope.observer.window.folder import Window

_GRACE_S = 60.0  # for loading, judging and writing, in addition to the window
_STEPS = 20  # steps in a window
_LEAST_S, _MOST_S = 5.0, 60.0
# For a job that makes no steps: a rank silent for STALL_SECONDS is stuck, and a working one is seen
# within a second.
STANDSTILL_S = limits.STALL_SECONDS + 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of a look.

    `verdict`: JSON of schema rankscope.verdict/1, None where there is none; `trouble`: the reason.
    `after_s`: delay from the request to the window's begin, None without a window; `took_s`: total
    seconds; `kept`: its name in the history; `share`: settings shared with other hosts;
    `judged_by`: the other host that judged, '' if this one did; `broken`: if another host judges,
    reasons to drain this one by its own window; `pauses`: what the window saw of pauses.
    """

    alarm: Alarm
    verdict: dict[str, Any] | None
    trouble: str
    after_s: float | None
    took_s: float = 0.0
    kept: str = ""
    share: Share | None = None
    judged_by: str = ""
    broken: tuple[str, ...] = ()
    pauses: tuple[SeenPause, ...] = ()

    @property
    def waits(self) -> bool:
        """True if another host judges this look and has not yet."""
        return self.verdict is None and self.share is not None and not self.share.judges

    @property
    def accuses(self) -> bool:
        """True if the verdict has a suspect, and its status is not `inefficient`."""
        return bool(self.verdict and self.verdict["suspects"]) and not self.wastes

    @property
    def wastes(self) -> bool:
        """True if the verdict's status is `inefficient`: no rank differs, but the job wastes time. It alerts nobody."""
        return self.verdict is not None and self.verdict["status"] == "inefficient"


@dataclass(slots=True)
class Look:
    """A running window. Call `done` until it returns the result."""

    alarm: Alarm
    pid: int
    result: int  # file descriptor
    begun_s: float
    deadline_s: float
    share: Share | None = None

    def done(self) -> Seen | None:
        """Return the result; None while it runs. Kills a child that exceeds its deadline."""
        ended, _ = os.waitpid(self.pid, os.WNOHANG)
        if not ended and time.monotonic() < self.deadline_s:
            return None
        if not ended:
            self.kill()
            return self._read("it took too long, and was ended")
        return self._read("it ended without a word")

    def kill(self) -> None:
        """Kill the child now."""
        end(self.pid)

    def _read(self, otherwise: str) -> Seen:
        """Read the result that the child wrote; without a valid one a result without verdict, with trouble `otherwise`."""
        try:
            with os.fdopen(self.result, "rb") as file:
                file.seek(0)
                said = json.loads(file.read(budgets.FILE_BYTES_MOST))
            after_s = None if said["window_s"] is None else float(said["window_s"]) - self.begun_s
            took_s = time.monotonic() - self.begun_s
            broken, pauses = tuple(map(str, said["broken"])), pauses_seen.from_json(said["pauses"])
            return Seen(
                self.alarm, said["verdict"], said["trouble"], after_s, took_s, said["kept"], self.share, broken=broken,
                pauses=pauses,
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError):
            return Seen(self.alarm, None, otherwise, None, share=self.share)


def window_s(step_s: float | None, standstill: bool) -> float:
    """Return a window's length in seconds, for enough steps; in a standstill, long enough to prove it.

    `step_s`: usual duration of a step, None if unknown.
    """
    if standstill:
        return STANDSTILL_S
    return _LEAST_S if step_s is None else min(max(_STEPS * step_s, _LEAST_S), _MOST_S)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested look.

    `seconds`: length of its window; `share`: settings of a look of all hosts, None if it is of this host alone;
    `only_judge`: judge finished windows only.
    """

    alarm: Alarm
    seconds: float
    history: Path
    share: Share | None = None
    only_judge: bool = False

    @property
    def longest_s(self) -> float:
        """Seconds after which the look is killed."""
        return self.seconds + _GRACE_S + (self.share.longer_s if self.share is not None else 0.0)


def begin(wanted: Wanted) -> Look:
    """Fork a child that loads probes, observes and judges. Raises OSError."""
    begun_s = time.monotonic()
    pid, result = forked_with_result("look", lambda result: _look(wanted, result))
    return Look(wanted.alarm, pid, result, begun_s, begun_s + wanted.longest_s, wanted.share)


def forked_with_result(name: str, work: Callable[[int], None]) -> tuple[int, int]:
    """Fork a child as `forked` does, with a descriptor for its result; return (pid, descriptor). Raises OSError."""
    result = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        return forked(lambda: work(result)), result
    except BaseException:
        os.close(result)
        raise


def forked(work: Callable[[], None]) -> int:
    """Fork a child that runs `work` and ends with it, or with this process; return its pid. Raises OSError."""
    READER.close()  # its child process can serve only one of us
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
    """Record the window and write its verdict to the descriptor `result`; runs in the child."""
    from rankscope.observer.recorder import record

    telling = Telling(result)
    telling.judged(wanted, lambda: record(options_of(wanted), telling.heard)[0].window)


def options_of(wanted: Wanted) -> RecordOptions:
    """Return the recording options of a requested look: begin at once, or at the time agreed on with other hosts."""
    # Imported here, in the child: the service needs none of it.
    from rankscope.observer.recorder import RecordOptions

    if wanted.share is None:
        return RecordOptions(window_s=wanted.seconds, job=wanted.alarm.job, align_s=0.0)
    return RecordOptions(window_s=wanted.seconds, job=wanted.alarm.job, begin_at=wanted.share.trigger.start)


@dataclass(slots=True)
class Telling:
    """Writes the result of a look, in the child, to an anonymous file.

    `began_s`: begin of its window, CLOCK_MONOTONIC; `apart_s`: Unix time less CLOCK_MONOTONIC at that time; `reads`:
    thread that imports the judging code.
    """

    result: int
    began_s: float | None = None
    apart_s: float | None = None
    reads: threading.Thread | None = None

    def heard(self, text: str) -> None:
        """Handle a progress message of the observer: once it observes, import the judging code in a thread."""
        if self.reads is None and text.startswith("observing"):
            self.apart_s = time.time() - time.monotonic()
            # Import the judging code while the window runs.
            self.reads = threading.Thread(target=_read_what_judges, daemon=True)
            self.reads.start()

    def _begun(self, window: Window) -> Window:
        """Note when the window began, give the importing thread normal priority, and return the window."""
        apart_s = self.apart_s if self.apart_s is not None else time.time() - time.monotonic()
        self.began_s = window.manifest.start - apart_s
        if self.reads is not None and self.reads.is_alive() and self.reads.native_id is not None:
            with contextlib.suppress(OSError):  # from now on it is waited for
                os.sched_setscheduler(self.reads.native_id, os.SCHED_OTHER, os.sched_param(0))
        return window

    def _ended_s(self, share: Share, window: Window) -> float | None:
        """Return when the interval common to all hosts ended, CLOCK_MONOTONIC, whatever the clock was set to since.

        None if no window began.
        """
        if self.began_s is None:
            return None
        trigger = share.trigger
        return self.began_s - share.pace.late_s(trigger, window.manifest.start) + trigger.seconds

    def judged(self, wanted: Wanted, observe: Callable[[], Window]) -> None:
        """Write the verdict on the window that `observe` records, or why there is none; errors are part of the result."""
        verdict: dict[str, Any] | None = None
        trouble = kept = ""
        broken: tuple[str, ...] = ()
        window: Window | None = None
        try:
            if wanted.share is not None:
                window = None if wanted.only_judge else self._begun(observe())
                ended_s = self._ended_s(wanted.share, window) if window is not None else None
                # Not earlier: it waits for the idle thread's imports, which on a busy host get no
                # CPU before `_begun`.
                from rankscope.diagnose.service.hosts import judging

                outcome = judging.judge_with_others(wanted.share, wanted.history, window, ended_s)
                verdict, trouble, kept, broken = outcome.verdict, outcome.trouble, outcome.kept, outcome.broken
            else:
                window = self._begun(observe())
                verdict, trouble, kept = _by_itself(wanted, window)
        except Exception as error:  # no failure in here may end the service: it is reported
            trouble = f"{type(error).__name__}: {error}" if not isinstance(error, RankscopeError) else str(error)
        about = {"trouble": clean(trouble, 300), "window_s": self.began_s, "kept": kept, "broken": broken}
        said = {"verdict": verdict, **about, "pauses": _pauses(window)}
        os.write(self.result, json.dumps(said).encode())


def _pauses(window: Window | None) -> list[list[Any]]:
    """Return the pauses in a window as JSON; [] without a window or where they cannot be read.

    A verdict is not lost for it.
    """
    if window is None:
        return []
    try:
        return pauses_seen.as_json(pauses_seen.seen_in(window))
    except (KeyError, TypeError, ValueError):
        return []


def _read_what_judges() -> None:
    """Import the judging code at idle priority; runs in a thread of its own."""
    with contextlib.suppress(OSError):
        # this thread only: the window's CPU belongs to the ranks
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    importlib.import_module("rankscope.diagnose.infer.solve.judge")


def _by_itself(wanted: Wanted, window: Window) -> tuple[dict[str, Any], str, str]:
    """Judge this host's window alone and add it to the history.

    Returns the verdict as JSON, why the history failed ('' if it did not), and the window's name there.
    """
    from rankscope.diagnose.infer.past.history import History
    from rankscope.diagnose.infer.solve import judge

    store = History(wanted.history)
    found = judge.diagnose([window], (), wanted.alarm.job, store)
    trouble = kept = ""
    try:
        kept = store.add(window, found).name
    except RankscopeError as error:
        trouble = str(error)
    return json.loads(to_json(found)), trouble, kept
