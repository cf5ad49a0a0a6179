"""From windows to one verdict.

0. Check that all essential sources of evidence are there (unseen.py).
1. Check for a hang (infer/causes/hang).
2. Check for enough steps and ranks (enough.py).
3. Find odd ranks that others wait for, and their causes (odd_ranks.py).
4. Add all other causes as rows of one table (infer/causes/rows.py) and select.

Without a suspect: look at a part of the window, or without queues (views.py); then decide between
healthy and unknown (nobody.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose.infer.budget.measure import budget_of
from rankscope.diagnose.infer.causes import rows
from rankscope.diagnose.infer.causes.group.members import Members
from rankscope.diagnose.infer.causes.group.shared import with_groups
from rankscope.diagnose.infer.causes.hang.loading import waited_for
from rankscope.diagnose.infer.causes.hang.processes import told_to_end
from rankscope.diagnose.infer.causes.hang.standstill import find_hang
from rankscope.diagnose.infer.causes.hypothesis import DESIGNED
from rankscope.diagnose.infer.causes.job.moving_work import moving_work
from rankscope.diagnose.infer.causes.job.slow_everywhere import slower_everywhere
from rankscope.diagnose.infer.causes.link.suspects import slow_links
from rankscope.diagnose.infer.causes.rank.rare_steps import rare_rows
from rankscope.diagnose.infer.causes.rows import Row, standing
from rankscope.diagnose.infer.causes.whole_job import WholeJob, rows_of
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.flight.account import Blame
from rankscope.diagnose.infer.lacking import sees
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.still.merged_stacks import merged_stacks
from rankscope.diagnose.infer.past.auto_baseline import choose
from rankscope.diagnose.infer.past.baseline import Reference, code_changed, read_baseline
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve.calibration import calibrate, calibrate_uncounted
from rankscope.diagnose.infer.solve.enough import cannot_judge, not_compared
from rankscope.diagnose.infer.solve.nobody import nobody
from rankscope.diagnose.infer.solve.notes import behind_gpu, idle_counters, pauses
from rankscope.diagnose.infer.solve.odd_ranks import OddRanks, find_odd_ranks
from rankscope.diagnose.infer.solve.prepare import prepare
from rankscope.diagnose.infer.solve.unseen import nothing_to_judge_by, without_unseen
from rankscope.diagnose.infer.solve.views import (
    Calm,
    calm_ranks,
    calm_steps,
    calm_work,
    calmed,
    of_step,
    stretch_suspects,
)
from rankscope.diagnose.infer.verdict.contract import StepSeconds, Suspect, Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.diagnose.text import rank_list
from rankscope.observer.window.folder import Window
from rankscope.observer.window.store.users import rename_jobs
from rankscope.probes.base.arrays import Floats


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
        return judge(fleet, read_baseline(usable, fleet.job))
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
    per_step = nan_median(fleet.steps.seconds, 0)
    step_s = float(np.nanmedian(per_step)) if np.isfinite(per_step).any() else None
    draft = _draft(fleet, reference, per_step)
    if (blind := nothing_to_judge_by(fleet)) is not None:
        return replace(draft, notes=(blind, *draft.notes))
    return without_unseen(fleet, _judge(fleet, reference, per_step, draft, step_s))


def _judge(
    fleet: Fleet, reference: Reference | None, per_step: Floats, draft: Verdict, step_s: float | None
) -> Verdict:
    hang = find_hang(fleet, step_s)
    if hang is not None:
        suspects = tuple(replace(each, confidence=calibrate_uncounted(each.confidence)) for each in hang.suspects)
        notes = (*draft.notes, *hang.notes, *idle_counters.events(fleet, suspects))
        return replace(draft, status="hang", suspects=suspects, notes=notes, stacks=merged_stacks(fleet))
    if (loading := waited_for(fleet, step_s)) is not None:
        draft = replace(draft, notes=(loading, *draft.notes))
    refusal = cannot_judge(fleet, reference is not None, step_s)
    if refusal is not None:
        told = (pause.note for pause in pauses.find(fleet))
        return replace(draft, status="unknown", notes=(refusal, *draft.notes, *told, *idle_counters.notes(fleet, ())))
    return _judge_steps(fleet, reference, per_step, draft)


def _draft(fleet: Fleet, reference: Reference | None, per_step: Floats) -> Verdict:
    finite = per_step[np.isfinite(per_step)]
    return Verdict(
        status="unknown",
        job=fleet.job,
        hosts=fleet.hosts,
        ranks=tuple(int(number) for number in fleet.ranks.number),
        start=fleet.start,
        end=fleet.start + fleet.seconds,
        baseline=reference.about if reference else None,
        step_seconds=StepSeconds(
            median(finite) if len(finite) else None,
            float(np.percentile(finite, 99)) if len(finite) else None,
            reference.step_p50 if reference else None,
        ),
        slowdown_percent=0.0,
        suspects=(),
        notes=(*fleet.notes, *_about_data(fleet, reference)),
        steps=len(finite),
        title=fleet.title,
        guessed=fleet.ranks.guessed,
        budget=budget_of(fleet),
    )


def _about_data(fleet: Fleet, reference: Reference | None) -> list[Note]:
    """Return notes on the baseline and the ranks that belong to every verdict."""
    notes: list[Note] = []
    if reference is not None:
        notes.extend(reference.notes)
        if code_changed(reference, fleet):
            text = (
                "the baseline ran other code: most of its time was in functions that are not here now; "
                "a slow-down against it may be the change itself"
            )
            notes.append(Note(NoteCode.CODE_CHANGED, text))
    gone = [int(n) for n, state in zip(fleet.ranks.number, fleet.ranks.state, strict=True) if state == "exited"]
    if gone:
        asked = told_to_end(fleet)
        how = f": all of them were told to end ({asked})" if asked else ""
        notes.append(Note(NoteCode.RANKS_ENDED, f"{rank_list(tuple(gone))} ended in the window{how}"))
    lost = fleet.lost_events
    if lost > 0:
        notes.append(Note(NoteCode.EVENTS_LOST, f"{lost} events were lost between kernel and observer"))
    return notes


def _judge_steps(fleet: Fleet, reference: Reference | None, per_step: Floats, draft: Verdict) -> Verdict:
    paused = pauses.find(fleet)
    scene, notes = prepare(fleet, per_step, paused)
    notes = [*draft.notes, *not_compared(fleet, reference is not None), *notes]
    odd = find_odd_ranks(fleet, scene, reference)
    scene = odd.scene
    calm = calmed(fleet, scene)
    views, found, noise, more = _standing(fleet, odd, reference, calm)
    suspects: list[Suspect] = []
    notes += more
    for view in views:
        of_view, why = view.suspects(found, scene)
        suspects += of_view if view is odd else of_step(of_view, scene.step_s)
        notes += [*view.notes, *(why if view is views[0] else ())]
    suspects += rows.suspects(fleet, scene, [row for row in found if not row.of_rank])
    notes += [] if suspects else noise
    if not suspects and not fleet.timed and reference is None:
        suspects, more, scene = stretch_suspects(fleet, scene, per_step)
        notes += more
    suspects = [_calibrated(suspect) for suspect in suspects]
    members = Members(fleet, odd.scene)
    suspects = with_groups(fleet, members.of_hosts(suspects), fleet.groups, members)
    # Faults before imbalance by design, causes of single ranks before those of whole hosts, then
    # by cost.
    suspects.sort(key=lambda one: (one.cause in DESIGNED, one.scope in ("host", "all"), -one.lost_seconds_per_step))
    status = "imbalance" if all(suspect.cause in DESIGNED for suspect in suspects) else "fault"
    if not suspects:
        status, notes = nobody(fleet, reference is not None, scene, per_step, bool(odd.selection.unexplained), notes)
    return replace(
        draft,
        status=status,
        suspects=tuple(suspects),
        slowdown_percent=_slowdown_percent(scene, reference, suspects),
        notes=(
            *behind_gpu.notes(fleet, suspects, scene.step_s),
            *pauses.without_accused(_without_acquitted(notes, suspects), paused, suspects),
            *idle_counters.notes(fleet, suspects),
        ),
    )


def _calibrated(suspect: Suspect) -> Suspect:
    uncounted = suspect.guess or suspect.cause in DESIGNED
    return replace(suspect, confidence=(calibrate_uncounted if uncounted else calibrate)(suspect.confidence))


def _without_acquitted(notes: Sequence[Note], suspects: Sequence[Suspect]) -> list[Note]:
    """Drop notes on why a rank is no suspect where another view of the window made it one."""
    accused = {rank for one in suspects if one.scope == "rank" for rank in one.ranks}
    return [note for note in notes if note.rank not in accused]


def _standing(
    fleet: Fleet, odd: OddRanks, reference: Reference | None, calm: Calm | None
) -> tuple[list[OddRanks], list[Row], list[Note], list[Note]]:
    """Select rows from all views; return (views, selected rows, notes without suspects, other
    notes).

    The first list of notes applies only if there are no suspects; views are those of single ranks
    that found something.
    """
    scene, views = odd.scene, [odd]
    always = rows.ranks_of(standing(scene, odd.rows))
    if calm is not None and (hidden := calm_ranks(fleet, scene, calm, always)) is not None:
        views = [odd, hidden] if len(always) else [hidden]
        always = np.union1d(always, rows.ranks_of(hidden.rows))
    of_ranks = [row for view in views for row in view.rows]
    seldom, notes = rare_rows(fleet, scene, always)
    if not seldom and calm is not None:
        seldom = calm_steps(calm, always)
    moving, noise = moving_work(fleet, scene)
    offered = [
        *slow_links(fleet, scene, of_ranks),
        *rows_of(WholeJob(fleet, scene, of_ranks, always)),
        *moving,
        *seldom,
    ]
    found = standing(scene, offered)
    if not found and calm is not None:
        found = standing(scene, calm_work(calm))
    if reference is not None:
        found = standing(scene, [*found, *slower_everywhere(fleet, scene, reference, found)])
    return views, found, noise, notes


def _slowdown_percent(scene: Scene, reference: Reference | None, suspects: Sequence[Suspect]) -> float:
    """Percent by which steps are longer than without the suspects, or than in the baseline
    if more.
    """
    lost = sum(suspect.lost_seconds_per_step for suspect in suspects)
    slowdown = 100 * lost / max(scene.step_s - lost, 1e-9) if suspects else 0.0
    if reference is not None:
        slowdown = max(slowdown, 100 * (scene.step_s / reference.step_p50 - 1))
    return max(slowdown, 0.0)
