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


def remember(history: History, windows: Sequence[Window], verdict: Verdict | None = None) -> tuple[str, ...]:
    """Keep these windows. `verdict`: of one of their jobs; the others are judged here. Returns what went wrong, in lines."""
    troubles = []
    for window in windows:
        try:
            said = verdict if verdict is not None and window.manifest.jobs == (verdict.job,) else _judged(window)
            history.add(window, said)
        except RankscopeError as error:
            troubles.append(f"not kept in the history: {error}")
    return tuple(dict.fromkeys(troubles))


def _judged(window: Window) -> Verdict:
    return diagnose([window], job=window.manifest.jobs[0] if window.manifest.jobs else None)
