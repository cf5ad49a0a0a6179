"""A closer look: one window of one job, judged, in a child of the service.

The child is forked, and what a window takes of memory goes with it. It
ends with the service (PR_SET_PDEATHSIG), with its time, or by itself; its probes hang on descriptors and end with it. The verdict comes
back in a file without a name (memfd), so nothing is left on a disk whoever is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.diagnose import limits
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.as_json import to_json
from rankscope.diagnose.watch.alarms import Alarm
from rankscope.diagnose.watch.signals import as_usual, end_with
from rankscope.probes.errors import RankscopeError
from rankscope.probes.mapped.reader import READER

if TYPE_CHECKING:
    from rankscope.diagnose.watch.hosts.share import Share

_GRACE_S = 60.0  # for loading, judging and writing beside the window itself
_STEPS = 20  # of a window
_LEAST_S, _MOST_S = 5.0, 60.0
_MAX_BYTES = 16 << 20
# Of a job that stands still: what is silent for STALL_SECONDS does, and what makes its steps is seen to within a second.
STANDSTILL_S = limits.STALL_SECONDS + 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look told. `verdict`: JSON of schema rankscope.verdict/1, None where there is none; `trouble`: why. `after_s`: so long
    after the look was asked for its window began, None where it did not; `took_s`: all of it; `kept`: its name in the history; `share`:
    what it has in common with looks of other hosts; `judged_by`: which of them judged, '' where this one did."""

    alarm: Alarm
    verdict: dict[str, Any] | None
    trouble: str
    after_s: float | None
    took_s: float = 0.0
    kept: str = ""
    share: Share | None = None
    judged_by: str = ""

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
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _read(self, otherwise: str) -> Seen:
        try:
            with os.fdopen(self.result, "rb") as file:
                file.seek(0)
                said = json.loads(file.read(_MAX_BYTES))
            after_s = None if said["window_s"] is None else float(said["window_s"]) - self.begun_s
            took_s = time.monotonic() - self.begun_s
            return Seen(self.alarm, said["verdict"], said["trouble"], after_s, took_s, said["kept"], self.share)
        except (OSError, ValueError, KeyError, TypeError):
            return Seen(self.alarm, None, otherwise, None, share=self.share)


def window_s(step_s: float | None, standstill: bool) -> float:
    """How long a window holds enough steps; where there are none, as long as shows that."""
    if standstill:
        return STANDSTILL_S
    return _LEAST_S if step_s is None else min(max(_STEPS * step_s, _LEAST_S), _MOST_S)


def begin(alarm: Alarm, seconds: float, history: Path, share: Share | None = None, only_judge: bool = False) -> Look:
    """Fork the child. `share`: it is one of the looks of all hosts; `only_judge`: of those that have been. OSError."""
    READER.close()  # its process serves one of us
    result = os.memfd_create("look", os.MFD_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    parent, begun_s = os.getpid(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            if not end_with(parent):
                os._exit(code)
            as_usual()
            code = _observe(alarm, seconds, history, result, share, only_judge)
        finally:
            os._exit(code)
    longest_s = seconds + _GRACE_S + (share.longer_s if share is not None else 0.0)
    return Look(alarm, pid, result, begun_s, begun_s + longest_s, share)


def _observe(
    alarm: Alarm, seconds: float, history: Path, result: int, share: Share | None = None, only_judge: bool = False
) -> int:
    begun: list[float] = []

    def heard(text: str) -> None:
        if text.startswith("observing") and not begun:
            begun.append(time.monotonic())

    verdict: dict[str, Any] | None = None
    trouble = kept = ""
    try:
        if share is not None:
            from rankscope.diagnose.watch.hosts import judging

            outcome = (
                judging.judge_all(share, history) if only_judge else judging.look_with_others(share, history, heard)
            )
            verdict, trouble, kept = outcome.verdict, outcome.trouble, outcome.kept
        else:
            verdict, trouble, kept = _by_itself(alarm, seconds, history, heard)
    except Exception as error:  # whatever goes wrong in here must not end the service: it says so
        trouble = f"{type(error).__name__}: {error}" if not isinstance(error, RankscopeError) else str(error)
    said = {
        "verdict": verdict,
        "trouble": clean(trouble, 300),
        "window_s": begun[0] if begun else None,
        "kept": kept,
    }
    os.write(result, json.dumps(said).encode())
    return 0


def _by_itself(
    alarm: Alarm, seconds: float, history: Path, heard: Callable[[str], None]
) -> tuple[dict[str, Any], str, str]:
    """The verdict on this host's window, what kept it from the history, and its name there."""
    # Here, in the child, as the service needs none of it: 30 MB, for 0.3 s before each window.
    from rankscope.observer.recorder import RecordOptions, record

    (recorded, *_) = record(RecordOptions(window_s=seconds, job=alarm.job, align_s=0.0), heard)
    from rankscope.diagnose.past.history import History
    from rankscope.diagnose.solve import judge

    store = History(history)
    found = judge.diagnose([recorded.window], (), alarm.job, store)
    trouble = kept = ""
    try:
        kept = store.add(recorded.window, found).name
    except RankscopeError as error:
        trouble = str(error)
    return json.loads(to_json(found)), trouble, kept
