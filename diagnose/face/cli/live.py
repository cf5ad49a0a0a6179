"""Observe this host until a verdict is reached, or the time limit.

An inconclusive window (too few steps, a stall seen twice) is followed at once by a longer one with
the same probes. Conclusive verdicts stay; only inconclusive jobs are judged again. An interrupt
during the second window yields the first verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rankscope.diagnose.collector import paused
from rankscope.diagnose.face.cli.output import progress
from rankscope.diagnose.infer.solve.enough import further_s
from rankscope.diagnose.infer.verdict.contract import Verdict, worst_first
from rankscope.diagnose.infer.verdict.note import LONGER_TELLS, Note, NoteCode
from rankscope.diagnose.text import clean, seconds
from rankscope.probes.base.errors import RankscopeError

if TYPE_CHECKING:
    from rankscope.observer.window.folder import Window

Judge = Callable[[Sequence["Window"]], list[Verdict]]


class Told:
    """Windows and verdicts so far, by job."""

    def __init__(self, window_s: float, at_most_s: float) -> None:
        self._left_s, self._last_s = at_most_s - window_s, window_s
        self._windows: dict[tuple[str, ...], Window] = {}
        self._verdicts: dict[str, Verdict] = {}

    @property
    def windows(self) -> list[Window]:
        return list(self._windows.values())

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts so far, worst first."""
        return worst_first(self._verdicts.values())

    def hear(self, windows: Sequence[Window], verdicts: Sequence[Verdict]) -> tuple[float, str] | None:
        """Add windows and verdicts.

        Return how long to observe further, and why, or None if that is enough. Jobs with a
        conclusive verdict keep it.
        """
        settled = {job for job, before in self._verdicts.items() if further_s(before) is None}
        for verdict in verdicts:
            if verdict.job not in settled:
                self._verdicts[verdict.job] = self._after(self._verdicts.get(verdict.job), verdict)
        for window in windows:
            if not settled.issuperset(window.manifest.jobs):
                self._windows[window.manifest.jobs] = window
        return self._further()

    def _after(self, before: Verdict | None, verdict: Verdict) -> Verdict:
        """Add a note to a job's verdict if an earlier window was inconclusive; `before`: its verdict, None if none."""
        if before is None:
            return verdict
        text = f"a window of {seconds(before.end - before.start)} before did not tell ({_reason(before).text})"
        return replace(verdict, notes=(*verdict.notes, Note(NoteCode.LOOKED_ON, text)))

    def _further(self) -> tuple[float, str] | None:
        """Return how long to observe further, and why; None if all verdicts are conclusive or too little time is left.

        The time is taken from what is left. It is that of the job that needs most.
        """
        wanted = [(further, one) for one in self._verdicts.values() if (further := further_s(one)) is not None]
        if not wanted:
            return None
        longest_s, verdict = max(wanted, key=lambda each: each[0])
        next_s = float(round(min(longest_s, self._left_s)))
        if next_s <= self._last_s:  # an equal window would not be conclusive either
            return None
        self._left_s -= next_s
        self._last_s = next_s
        return next_s, f"{verdict.title or verdict.job}: {_reason(verdict).text}"


def observe_until_told(
    window_s: float, at_most_s: float, job: str | None, pids: tuple[int, ...], verbose: bool, judge: Judge
) -> tuple[list[Window], list[Verdict]]:
    """Observe this host; return the windows, and one verdict per job, worst first.

    `at_most_s`: limit for all windows together. Errors of the recorder are raised only before a
    first verdict.
    """
    # Imported here, as judging stored windows does not need it.
    with paused():
        from rankscope.observer.recorder import RecordOptions, know_tables, record_on

        know_tables()
    # Judged alone, without other hosts' windows, so no common beginning is needed.
    options = RecordOptions(window_s=window_s, align_s=0.0, pids=pids, job=job, verbose=verbose)
    told = Told(window_s, at_most_s)
    with progress() as say:

        def judged(windows: list[Window]) -> float | None:
            """Judge the windows; return the seconds to observe further, None if that is enough."""
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
    """Return the note of an inconclusive verdict that asks for a longer window."""
    return next(note for note in verdict.notes if note.code in LONGER_TELLS)
