"""Verdicts of windows: one for each of their jobs, as `rankscope diagnose` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.diagnose.infer.fleet.roll_call import jobs_in, largest, roll_call, windows_of
from rankscope.diagnose.infer.fleet.sources import Loaded
from rankscope.diagnose.infer.flight.account import Blame
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve import judge
from rankscope.diagnose.infer.solve.unjudged import each_by_itself, unjudged
from rankscope.diagnose.infer.verdict.contract import Verdict, worst_first
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.jobs import names
from rankscope.observer.window.store.users import rename_jobs


def judge_all(
    loaded: Loaded, earlier: Sequence[Window], wanted: str | None, history: History | None, shared: Sequence[Group],
    flight: Sequence[Blame] = (),
) -> list[Verdict]:  # fmt: skip
    """Judge each selected job of windows that were read; worst first.

    `earlier`: baseline windows; one that holds some of the jobs is used for these alone. `wanted`: name or title of
    the jobs, None for all; `history`: for an automatic baseline, None for none; `shared`: groups of hosts that share
    something; `flight`: what dumps of the flight recorder blame.
    """
    windows, earlier = rename_jobs(loaded.windows, earlier)
    roll, notes = roll_call(windows), list(loaded.notes)
    found = jobs_in(roll, wanted)
    called = names(found)
    titles = largest(roll, found, notes)
    held = {job for window in earlier for job in window.ranks["job"].to_pylist()} & titles.keys()

    def judged(job: str) -> Verdict:
        """Judge one job, with the baseline if that is of it."""
        without = bool(held) and job not in held
        verdict = judge.diagnose(windows, () if without else earlier, job, history, tuple(notes), shared, flight)
        if without:
            note = Note(NoteCode.BASELINE_NONE, "the baseline is of another job: this one is judged without it")
            verdict = replace(verdict, notes=(*verdict.notes, note))
        return verdict if called[job] == titles[job] else replace(verdict, title=called[job])

    def refused(job: str, why: Note) -> Verdict:
        """Make the verdict of a job that cannot be judged; `why`: the reason."""
        said = [why, *notes]
        return replace(unjudged(roll, job, windows_of(roll, job, said), said), title=called[job])

    return worst_first(verdict for _, verdict in each_by_itself(titles, judged, refused))
