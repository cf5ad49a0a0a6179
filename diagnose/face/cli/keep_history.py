"""Store every window observed on this host in the history, with its verdict.

A failure does not affect the verdict: it is reported in one line.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window.folder import Window
from rankscope.probes.base.errors import RankscopeError


def remember(history: History, windows: Sequence[Window], verdicts: Sequence[Verdict] = ()) -> tuple[str, ...]:
    """Store these windows; return errors as lines.

    `verdicts`: of their jobs; other jobs are judged here.
    """
    of_job: dict[tuple[str, ...], Verdict] = {(verdict.job,): verdict for verdict in verdicts}
    troubles = []
    for window in windows:
        try:
            history.add(window, of_job.get(window.manifest.jobs) or _judged(window))
        except RankscopeError as error:
            troubles.append(f"not kept in the history: {error}")
    return tuple(dict.fromkeys(troubles))


def _judged(window: Window) -> Verdict:
    """Judge one window, of its first job."""
    return diagnose([window], job=window.manifest.jobs[0] if window.manifest.jobs else None)
