"""From windows to one verdict, in five steps.

1. views    how the window is looked at: as it is, without queueing, a stretch (views.py)
2. compare  each rank with its peers, and the causes of those that are slower (odd_ranks.py)
3. propose  every cause of the table, by one door (../causes/whole_job.py)
4. select   the causes that explain the steps together (select.py)
5. explain  status, suspects, price, notes (explain.py)

Before: is all essential evidence there (unseen.py), does the job hang (../causes/hang), are there
enough steps and ranks (enough.py)?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose.infer.budget.kernel import with_kernel
from rankscope.diagnose.infer.budget.spent import Spent, spent_in
from rankscope.diagnose.infer.causes.hang.loading import waited_for
from rankscope.diagnose.infer.causes.hang.standstill import Hang, find_hang
from rankscope.diagnose.infer.causes.rank.odd_ranks import compare
from rankscope.diagnose.infer.causes.waste.spending import spending_of
from rankscope.diagnose.infer.causes.whole_job import propose
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.flight.account import Blame
from rankscope.diagnose.infer.lacking import sees
from rankscope.diagnose.infer.model.still.merged_stacks import merged_stacks
from rankscope.diagnose.infer.past.auto_baseline import choose
from rankscope.diagnose.infer.past.baseline import Reference, read_baseline
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.past.runs import as_same_run
from rankscope.diagnose.infer.solve.calibration import calibrate_uncounted
from rankscope.diagnose.infer.solve.draft import draft_of
from rankscope.diagnose.infer.solve.enough import cannot_judge
from rankscope.diagnose.infer.solve.explain import explain
from rankscope.diagnose.infer.solve.notes import idle_counters, pauses
from rankscope.diagnose.infer.solve.select import Found, select
from rankscope.diagnose.infer.solve.unseen import nothing_to_judge_by, without_unseen
from rankscope.diagnose.infer.solve.views import VIEWS
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import nan_median
from rankscope.observer.window.folder import Window
from rankscope.observer.window.store.users import rename_jobs


def diagnose(
    windows: Sequence[Window], baseline: Sequence[Window] = (), job: str | None = None, history: History | None = None,
    notes: Sequence[Note] = (), groups: Sequence[Group] = (), flight: Sequence[Blame] = (), agreed_s: float | None = None,
) -> Verdict:  # fmt: skip
    """Judge one job from its windows.

    `history`: where to look for a baseline, unless one is given. `notes`: notes from reading the
        windows. `groups`: hosts that share something. `flight`: evidence of flight recorders.
        `agreed_s`: time at which all windows were to begin, if agreed.
    Raises BadData (foreign job or baseline) and NoRanks; everything else becomes a verdict.
    """
    windows, baseline = rename_jobs(windows, baseline)
    fleet = gather(windows, job, agreed_s)
    fleet = replace(fleet, notes=(*notes, *fleet.notes), groups=tuple(groups), flight=tuple(flight))
    if usable := [window for window in baseline if sees(window.manifest)]:
        return judge(fleet, read_baseline(as_same_run(usable, windows, fleet.job), fleet.job))
    if baseline:
        text = "the earlier windows lack what a verdict rests on: this one is judged without them"
        return judge(replace(fleet, notes=(*fleet.notes, Note(NoteCode.BASELINE_NONE, text))))
    if history is None:
        return judge(fleet)
    earlier = choose(history, windows, fleet.job)
    reference = read_baseline(earlier.windows, fleet.job, "history") if earlier.windows else None
    return judge(replace(fleet, notes=(*earlier.notes, *fleet.notes)), reference)


def judge(fleet: Fleet, reference: Reference | None = None) -> Verdict:
    """Return the verdict on one fleet, compared with earlier windows if given."""
    spent = spent_in(fleet)
    spent = None if spent is None else with_kernel(fleet, spent)
    draft = draft_of(fleet, reference, spent)
    if (blind := nothing_to_judge_by(fleet)) is not None:
        return replace(draft, notes=(blind, *draft.notes))
    per_step = nan_median(fleet.steps.seconds, 0)
    step_s = float(np.nanmedian(per_step)) if np.isfinite(per_step).any() else None
    if (hang := find_hang(fleet, step_s)) is not None:
        return without_unseen(fleet, _of_hang(fleet, hang, draft))
    if (loading := waited_for(fleet, step_s)) is not None:
        draft = replace(draft, notes=(loading, *draft.notes))
    if (refusal := cannot_judge(fleet, reference is not None, step_s)) is not None:
        told = (pause.note for pause in pauses.find(fleet))
        notes = (refusal, *draft.notes, *told, *idle_counters.notes(fleet, ()))
        return without_unseen(fleet, replace(draft, notes=notes))
    return without_unseen(fleet, _of_steps(fleet, reference, spent, draft))


def _of_steps(fleet: Fleet, reference: Reference | None, spent: Spent | None, draft: Verdict) -> Verdict:
    """Judge a job that makes steps: compare, propose and select in each view, then explain.

    `spent`: seconds by kind of activity, None if nothing was seen.
    """
    found: Found | None = None
    for view_of in VIEWS:
        view = view_of(fleet, reference, found)
        if view is not None:
            odd = compare(view.job, view.among)
            spending = None if view.job.asks else spending_of(fleet, odd.job.scene, spent)
            found = view.join(found, select(odd, propose(odd.job), notes=view.notes, spending=spending))
    assert found is not None
    return explain(found, draft)


def _of_hang(fleet: Fleet, hang: Hang, draft: Verdict) -> Verdict:
    """Complete the verdict on a hang: its suspects, notes, and the stacks of all ranks."""
    suspects = tuple(replace(each, confidence=calibrate_uncounted(each.confidence)) for each in hang.suspects)
    notes = (*draft.notes, *hang.notes, *idle_counters.events(fleet, suspects))
    return replace(draft, status="hang", suspects=suspects, notes=notes, stacks=merged_stacks(fleet))
