"""Every window of this host that was observed is kept in the history, with what was judged of it.

Memory is a side benefit: where it cannot be written the verdict stands, and one line says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.diagnose.past.history import History
from rankscope.diagnose.solve.judge import diagnose
from rankscope.diagnose.verdict.contract import Verdict
from rankscope.observer.window.folder import Window
from rankscope.probes.errors import RankscopeError


def remember(history: History, windows: Sequence[Window], verdicts: Sequence[Verdict] = ()) -> tuple[str, ...]:
    """Keep these windows. `verdicts`: of their jobs; jobs without one are judged here. Returns what went wrong, in lines."""
    of_job: dict[tuple[str, ...], Verdict] = {(verdict.job,): verdict for verdict in verdicts}
    troubles = []
    for window in windows:
        try:
            history.add(window, of_job.get(window.manifest.jobs) or _judged(window))
        except RankscopeError as error:
            troubles.append(f"not kept in the history: {error}")
    return tuple(dict.fromkeys(troubles))


def _judged(window: Window) -> Verdict:
    return diagnose([window], job=window.manifest.jobs[0] if window.manifest.jobs else None)
