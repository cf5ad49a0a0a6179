"""The part of a verdict that needs no inference: the job, its steps, and notes on its data."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.infer.budget.measure import budget_of
from rankscope.diagnose.infer.budget.spent import Spent
from rankscope.diagnose.infer.causes.hang.processes import told_to_end
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.past.baseline import Reference, code_changed
from rankscope.diagnose.infer.verdict.contract import StepSeconds, Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.diagnose.text import rank_list


def draft_of(fleet: Fleet, reference: Reference | None, spent: Spent | None) -> Verdict:
    """Return the verdict on a fleet before it is judged: unknown. `spent`: None if nothing was seen."""
    per_step = nan_median(fleet.steps.seconds, 0)
    finite = per_step[np.isfinite(per_step)]
    return Verdict(
        status="unknown",
        job=fleet.job,
        hosts=fleet.hosts,
        machines=_machines(fleet),
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
        budget=None if spent is None else budget_of(fleet, spent),
    )


def _machines(fleet: Fleet) -> tuple[str, ...]:
    """Names of the machines whose containers the hosts are; none where all hosts are machines."""
    hosts, machines = set(fleet.hosts), set(fleet.ranks.observed_on) - {""}
    return () if machines <= hosts else tuple(sorted(machines))


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
