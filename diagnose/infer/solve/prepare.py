"""Prepare the judged part of the window: from the onset on if steps grew, with roles and
differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet, Pipelines
from rankscope.diagnose.infer.fleet.pipelines import find_pipelines
from rankscope.diagnose.infer.fleet.roles import blind, roles
from rankscope.diagnose.infer.model import slots
from rankscope.diagnose.infer.model.busy_host import busy_noise_s, mean_queue_s
from rankscope.diagnose.infer.model.excess import Differences, differences
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.solve.notes.pauses import ToldPause
from rankscope.diagnose.infer.solve.notes.rhythm import LATER_PART, rhythm_notes
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.onset import Onset, find_onset
from rankscope.diagnose.stats.rhythm import Drift, find_drift
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.diagnose.text import rank_list, seconds
from rankscope.probes.base.arrays import Bools, Floats, Ints


def prepare(fleet: Fleet, per_step: Floats, paused: Sequence[ToldPause] = ()) -> tuple[Scene, list[Note]]:
    """Build the scene, with notes on the steps.

    `per_step`: seconds of each step, median over ranks; `paused`: known pauses, which explain long
        steps.
    """
    role = roles(fleet)
    onset, drift = _change(per_step)
    first = onset.column if onset is not None and onset.after_s > onset.before_s else 0
    notes = [*rhythm_notes(fleet, per_step, drift, first > 0, paused), *_about(onset, drift)]
    if drift is not None:
        onset = None  # a drift has no time at which it began
    notes += _unseen(fleet)
    growing = drift is not None and drift.end_s > drift.begin_s
    pipelines = fleet.pipelines if fleet.timed else find_pipelines(fleet, role)
    pipelines = None if pipelines is None else pipelines.since(first)
    return part_of(fleet, role, per_step, slice(first, len(per_step)), pipelines, onset, growing), notes


def part_of(
    fleet: Fleet, role: Ints, per_step: Floats, columns: slice, pipelines: Pipelines | None = None,
    onset: Onset | None = None, growing: bool = False,
) -> Scene:  # fmt: skip
    """Build the scene of these steps (columns), in which steps may be `growing` steadily.

    Steps before them serve only to estimate the autocorrelation of noise.
    """
    inside, own = per_step[columns], fleet.steps.own_s[:, : columns.stop]
    step_s = float(trimmed_mean(inside[np.isfinite(inside)][None, :])[0])
    least_s, noise_s = 0.0 if fleet.timed else limits.EFFECT_SECONDS, busy_noise_s(fleet, role)

    def beside(counted: Bools | None) -> Differences:
        """Compare the ranks with those in the mask as peers (None: all)."""
        return differences(own, role, step_s, columns.start, least_s, growing, counted, noise_s)

    found = beside(None)
    stays = None if fleet.slots is None else replace(fleet.slots, stay_s=fleet.slots.stay_s[:, columns])
    wait = fleet.steps.wait_s[:, columns]
    return Scene(
        own[:, columns.start :], wait, role, step_s, found, lambda counted: found if counted.all() else beside(counted),
        onset, inside - slots.least_stay(wait, pipelines, stays), pipelines, stays, least_s,
        collectives=fleet.collectives, queue_s=mean_queue_s(fleet, columns),
    )  # fmt: skip


def _change(per_step: Floats) -> tuple[Onset | None, Drift | None]:
    """Find a change of step length (its column counts all steps), and a steady growth; None without."""
    known = np.isfinite(per_step)
    onset = find_onset(per_step[known])
    drift = find_drift(per_step[known], onset)
    if onset is not None:
        onset = replace(onset, column=int(np.flatnonzero(known)[onset.column]))
    return onset, drift


def _about(onset: Onset | None, drift: Drift | None) -> list[Note]:
    """Return a note on steps that became longer or shorter; empty without a change, or if they drift."""
    if onset is None or drift is not None:
        return []
    longer = onset.after_s > onset.before_s
    text = (
        f"steps became {'longer' if longer else 'shorter'} in the window, from {seconds(onset.before_s)} to "
        f"{seconds(onset.after_s)}{f': {LATER_PART}' if longer else ''}"
    )
    return [Note(NoteCode.STEPS_CHANGED, text)]


def _unseen(fleet: Fleet) -> list[Note]:
    """Return a note on ranks whose hosts show no GPU data while others do; empty without."""
    unseen = fleet.ranks.number[blind(fleet)]
    if not len(unseen):
        return []
    who = rank_list(tuple(int(number) for number in unseen))
    text = f"{who}: the GPUs of their hosts are not seen (NVML); compared with each other only"
    return [Note(NoteCode.RANKS_BLIND, text)]
