"""Explain what was found in a job: status, suspects with their price, and notes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes import rows
from rankscope.diagnose.infer.causes.group.members import Members
from rankscope.diagnose.infer.causes.group.shared import with_groups
from rankscope.diagnose.infer.causes.hypothesis import DESIGNED, once
from rankscope.diagnose.infer.causes.waste.select import suspects_of
from rankscope.diagnose.infer.solve.calibration import calibrate, calibrate_uncounted
from rankscope.diagnose.infer.solve.nobody import nobody
from rankscope.diagnose.infer.solve.notes import behind_gpu, idle_counters, pauses
from rankscope.diagnose.infer.solve.select import Found
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import mean_of_known, nan_median


def explain(found: Found, draft: Verdict) -> Verdict:
    """Complete the verdict on a job: status, suspects and notes from what was selected.

    `draft`: the verdict without a status.
    """
    fleet, step_s = found.job.fleet, found.job.scene.step_s
    suspects, notes = _suspects(found)
    if found.before is not None:
        notes = [*_suspects(found.before)[1], *notes]
    suspects = _ordered(found, [_calibrated(each) for each in suspects])
    notes = _without_suspected([*draft.notes, *notes], suspects)
    wasted = suspects_of(found.spending, found.waste) if found.spending is not None else []
    suspects, wasted = _queue_named(suspects, wasted)
    if suspects:
        status = "imbalance" if all(suspect.cause in DESIGNED for suspect in suspects) else "fault"
    else:
        status, notes = nobody(found, notes)
        # Waste is measured by itself: it stands, whatever keeps a rank from being compared.
        if wasted:
            status, notes = "inefficient", _without_late(notes, _late_by_waste(found))
    slowdown = _slowdown_percent(found, suspects or wasted)
    suspects = [*suspects, *map(_calibrated, wasted)]
    return replace(
        draft,
        status=status,
        suspects=tuple(suspects),
        slowdown_percent=slowdown,
        notes=(
            *behind_gpu.notes(fleet, suspects, step_s),
            *pauses.without_accused(notes, pauses.find(fleet), suspects),
            *idle_counters.notes(fleet, suspects),
        ),
    )


def _suspects(found: Found) -> tuple[list[Suspect], list[Note]]:
    """Convert the selected hypotheses to suspects, with notes on ranks that are no suspects."""
    scene = found.job.scene
    suspects: list[Suspect] = []
    notes = [note for note in found.notes if note.code is not NoteCode.MOVING_NOISE]
    for odd in found.told:
        of_ranks, why = odd.suspects(found.rows, scene, found.job.fleet)
        suspects += of_ranks
        notes += [*odd.notes, *(why if odd is found.told[0] else ())]
    suspects += rows.suspects(found.job.fleet, scene, [row for row in found.rows if row.rank is None])
    # What makes ranks late in turn is said only where nobody is late for another reason.
    notes += [note for note in found.notes if note.code is NoteCode.MOVING_NOISE and not suspects]
    return suspects, notes


def _queue_named(suspects: Sequence[Suspect], wasted: Sequence[Suspect]) -> tuple[list[Suspect], list[Suspect]]:
    """Name the CPU masks as the cause of CPU queueing that grew on all ranks, where masks make half of it.

    That it grew is known from the baseline; why, from the ranks' masks, which are no waste then.
    Returns (suspects, wasted).
    """
    masks = next((one for one in wasted if one.code == "cpu/affinity"), None)
    grown = next((one for one in suspects if (one.code, one.scope) == ("cpu/contended", "all")), None)
    if masks is None or grown is None or masks.lost_seconds_per_step < limits.HOLDS_LEAST * grown.lost_seconds_per_step:
        return list(suspects), list(wasted)
    named = replace(
        masks, lost_seconds_per_step=grown.lost_seconds_per_step, lost_percent=grown.lost_percent, confidence=grown.confidence,
        since=grown.since, evidence=once((*masks.evidence[:-1], *grown.evidence)), waste=False,
    )  # fmt: skip
    return [named if one is grown else one for one in suspects], [one for one in wasted if one is not masks]


def _calibrated(suspect: Suspect) -> Suspect:
    """Replace the score of a suspect by its calibrated confidence."""
    uncounted = suspect.guess or suspect.waste or suspect.cause in DESIGNED
    return replace(suspect, confidence=(calibrate_uncounted if uncounted else calibrate)(suspect.confidence))


def _ordered(found: Found, suspects: list[Suspect]) -> list[Suspect]:
    """Complete suspects to hosts and groups of hosts, and sort them.

    Faults before imbalance by design, causes of single ranks before those of whole hosts, then by
    cost.
    """
    members = Members(found.job.fleet, found.job.scene)
    suspects = with_groups(found.job.fleet, members.of_hosts(suspects), found.job.fleet.groups, members)
    return sorted(
        suspects, key=lambda one: (one.cause in DESIGNED, one.scope in ("host", "all"), -one.lost_seconds_per_step)
    )


def _without_suspected(notes: Sequence[Note], suspects: Sequence[Suspect]) -> list[Note]:
    """Drop notes on why a rank is no suspect where another view of the window made it one."""
    suspected = {rank for one in suspects if one.scope == "rank" for rank in one.ranks}
    return [note for note in notes if note.rank not in suspected]


def _late_by_waste(found: Found) -> set[int]:
    """Numbers of the ranks whose longer own time is mostly waste that all ranks have, such as lacking input.

    What waste took of the rank, less the median over ranks, is at least half of its own time less
    the median.
    """
    ranks = len(found.job.fleet.ranks)
    taken = np.zeros(ranks)
    for row in found.waste:
        taken[row.taken.ranks] += np.nan_to_num(row.taken.own_s).mean(axis=1)
    own = mean_of_known(found.job.scene.own)
    more, wasted = own - nan_median(own[None, :], 1)[0], taken - np.median(taken)
    late = (more > 0) & (wasted >= limits.HOLDS_LEAST * more)
    return set(found.job.fleet.ranks.number[late].tolist())


def _without_late(notes: Sequence[Note], late: Collection[int]) -> list[Note]:
    """Drop notes on these ranks (numbers), whose lateness waste explains, and on ranks late in turn by noise."""
    return [note for note in notes if note.rank not in late and note.code is not NoteCode.MOVING_NOISE]


def _slowdown_percent(found: Found, suspects: Sequence[Suspect]) -> float:
    """Percent by which steps are longer than without the suspects, or than in the baseline if that is more."""
    step_s, reference = found.job.scene.step_s, found.job.reference
    lost = sum(suspect.lost_seconds_per_step for suspect in suspects)
    slowdown = 100 * lost / max(step_s - lost, 1e-9) if suspects else 0.0
    if reference is not None:
        slowdown = max(slowdown, 100 * (step_s / reference.step_p50 - 1))
    return max(slowdown, 0.0)
