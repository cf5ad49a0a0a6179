"""Observe this host until the verdict is told, or for as long as may be.

A window that cannot tell (too few steps, a stall that was seen twice) is followed by a longer one at once, with the probes that are
loaded. What was told of a job stands; what only time could tell is judged again. Whoever interrupts the second look gets the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rankscope.diagnose.cli.output import progress
from rankscope.diagnose.collector import paused
from rankscope.diagnose.solve.enough import further_s
from rankscope.diagnose.text import clean, seconds
from rankscope.diagnose.verdict.contract import Verdict, worst_first
from rankscope.diagnose.verdict.note import LONGER_TELLS, Note, NoteCode
from rankscope.probes.errors import RankscopeError

if TYPE_CHECKING:
    from rankscope.observer.window.folder import Window

Judge = Callable[[Sequence["Window"]], list[Verdict]]


class Told:
    """What was observed and said of each job so far."""

    def __init__(self, window_s: float, at_most_s: float) -> None:
        self._left_s, self._last_s = at_most_s - window_s, window_s
        self._windows: dict[tuple[str, ...], Window] = {}
        self._verdicts: dict[str, Verdict] = {}

    @property
    def windows(self) -> list[Window]:
        return list(self._windows.values())

    @property
    def verdicts(self) -> list[Verdict]:
        """The worst first."""
        return worst_first(self._verdicts.values())

    def hear(self, windows: Sequence[Window], verdicts: Sequence[Verdict]) -> tuple[float, str] | None:
        """How long to observe further, and why; None: it is enough. Jobs of which the last window told enough keep its verdict."""
        settled = {job for job, before in self._verdicts.items() if further_s(before) is None}
        for verdict in verdicts:
            if verdict.job not in settled:
                self._verdicts[verdict.job] = self._after(self._verdicts.get(verdict.job), verdict)
        for window in windows:
            if not settled.issuperset(window.manifest.jobs):
                self._windows[window.manifest.jobs] = window
        return self._further()

    def _after(self, before: Verdict | None, verdict: Verdict) -> Verdict:
        if before is None:
            return verdict
        text = f"a window of {seconds(before.end - before.start)} before did not tell ({_reason(before).text})"
        return replace(verdict, notes=(*verdict.notes, Note(NoteCode.LOOKED_ON, text)))

    def _further(self) -> tuple[float, str] | None:
        wanted = [(further, one) for one in self._verdicts.values() if (further := further_s(one)) is not None]
        if not wanted:
            return None
        longest_s, verdict = max(wanted, key=lambda each: each[0])
        next_s = float(round(min(longest_s, self._left_s)))
        if next_s <= self._last_s:  # as much again would tell as little
            return None
        self._left_s -= next_s
        self._last_s = next_s
        return next_s, f"{verdict.title or verdict.job}: {_reason(verdict).text}"


def observe_until_told(
    window_s: float, at_most_s: float, job: str | None, pids: tuple[int, ...], verbose: bool, judge: Judge
) -> tuple[list[Window], list[Verdict]]:
    """What was observed of this host, and a verdict for each job, the worst first. `at_most_s`: of all windows together.

    Raises what the recorder raises, as long as nothing is told.
    """
    # Here: windows that lie in folders are judged without it.
    with paused():
        from rankscope.observer.recorder import RecordOptions, know_tables, record_on

        know_tables()
    # Judged by itself: no other host's window is put beside it, so it need not wait for a common beginning.
    options = RecordOptions(window_s=window_s, align_s=0.0, pids=pids, job=job, verbose=verbose)
    told = Told(window_s, at_most_s)
    with progress() as say:

        def judged(windows: list[Window]) -> float | None:
            say("judging")
            further = told.hear(windows, judge(windows))
            if further is None:
                return None
            say(f"{clean(further[1], 120)}: observing for another {seconds(further[0])}")
            return further[0]

        try:
            record_on(options, judged, max(at_most_s, window_s), say)
        except (RankscopeError, KeyboardInterrupt) as error:
            if not told.verdicts:
                raise
            say(
                f"the further window was not had: {error}"
                if str(error)
                else "interrupted: this is what was told before"
            )
    return told.windows, told.verdicts


def _reason(verdict: Verdict) -> Note:
    """Why a longer window is wanted."""
    return next(note for note in verdict.notes if note.code in LONGER_TELLS)
