"""Other views of a window, judged by the same selection: a part of its steps, or without CPU
queues.

A part of the steps, where there is no suspect: a rank may be slow for a while only. It is the
sequence with the strongest of all ranks' excesses over their peers (stats/scan.py), at least as
strong as any hypothesis must be. Functions and counters are those of the whole window: a function
has the same part of the excess in both. A CPU that others took for a while is normal on a busy host
and no fault of the rank. Where strangers use 5 % of a host, what comes and goes there is
theirs: no part of an observed window is judged.

Without queues (model/busy_host.py): ranks whose work is too long but hidden by CPU queues, which
are a lower bound of the step; ranks that are so in few steps; and work that moves from rank to
rank, with which queues move too. Ranks that queue themselves are found in the window as it is. The
cost is the same share of the step as without queues, because all work takes longer alike; or, if
more, how much shorter the step were if the rank queued as its peers do, since a rank that computes
for longer also queues for longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.job.moving_work import moving_work
from rankscope.diagnose.infer.causes.rank.rare_steps import rare_steps
from rankscope.diagnose.infer.causes.rows import Row, Taken, ranks_of, standing
from rankscope.diagnose.infer.causes.whole_job import Known, WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model import slots
from rankscope.diagnose.infer.model.behind import behind_each, without
from rankscope.diagnose.infer.model.busy_host import busy_noise_s, busy_shares, mean_queue_s, without_queue
from rankscope.diagnose.infer.model.excess import Differences, differences
from rankscope.diagnose.infer.model.replay import in_order_of, repaired, shrink
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.solve.odd_ranks import OddRanks, find_odd_ranks
from rankscope.diagnose.infer.solve.prepare import prepare
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import mean_of_known, median, nan_median, peers_median, trimmed_mean
from rankscope.diagnose.stats.scan import Stretch, strongest_stretch
from rankscope.probes.base.arrays import Bools, Floats, Ints

WITHOUT_QUEUE = Note(
    NoteCode.WITHOUT_QUEUE,
    "the queues for CPUs hide who computes longer: judged by what ranks do when they have one",
)


@dataclass(frozen=True, slots=True)
class Calm:
    """The window without CPU queues; a step is `longer` with them, as a factor."""

    fleet: Fleet
    scene: Scene
    longer: float


def find_stretch(fleet: Fleet, role: Ints) -> Stretch | None:
    """Return the steps in which some rank is slower than its peers, if clearly no accident; else
    None.
    """
    if not fleet.steps.count:
        return None
    step_s = float(np.nanmedian(fleet.steps.seconds))
    gap = fleet.steps.own_s - peers_median(fleet.steps.own_s, role)
    known = np.isfinite(gap).any(axis=1)
    least_s = max(limits.EFFECT_SHARE * step_s, 0.0 if fleet.timed else limits.EFFECT_SECONDS)
    found = strongest_stretch(gap[known], limits.SCALE_FLOOR * step_s, least_s)
    return found if found is not None and found.strength >= limits.SCORE_LEAST else None


def about(begin: int, end: int, steps: int) -> Note:
    """Return the note on the judged steps: columns begin..end, end exclusive."""
    text = f"only in {end - begin} of the {steps} steps, from the {begin + 1}th on: these are judged"
    return Note(NoteCode.STRETCH, text)


def stretch_suspects(fleet: Fleet, scene: Scene, per_step: Floats) -> tuple[list[Suspect], list[Note], Scene]:
    """Judge the steps of `find_stretch` alone; return (suspects, notes, scene).

    Without such steps or a cause: no suspects, and the given scene.
    """
    found = find_stretch(fleet, scene.roles)
    if found is None or float(busy_shares(fleet)[found.row]) >= limits.EFFECT_SHARE:
        return [], [], scene
    within = _narrowed(fleet, scene, per_step, found)
    odd = find_odd_ranks(fleet, within)
    suspects, notes = odd.suspects(standing(odd.scene, odd.rows), odd.scene)
    suspects = [suspect for suspect in suspects if (suspect.component, suspect.cause) != ("cpu", "contended")]
    return (
        (suspects, [about(found.begin, found.end, fleet.steps.count), *notes], odd.scene)
        if suspects
        else ([], [], scene)
    )


def _narrowed(fleet: Fleet, scene: Scene, per_step: Floats, found: Stretch) -> Scene:
    """Build the scene of these steps alone."""
    steps, columns = fleet.steps, slice(found.begin, found.end)
    inside = per_step[columns]
    step_s = float(trimmed_mean(inside[np.isfinite(inside)][None, :])[0])
    least_s = 0.0 if fleet.timed else limits.EFFECT_SECONDS

    noise_s = busy_noise_s(fleet, scene.roles)

    def compare(counted: Bools) -> Differences:
        return differences(
            steps.own_s[:, : found.end], scene.roles, step_s, found.begin, least_s, False, counted, noise_s
        )

    stays = None if fleet.slots is None else replace(fleet.slots, stay_s=fleet.slots.stay_s[:, columns])
    wait = steps.wait_s[:, columns]
    return Scene(
        own=steps.own_s[:, columns],
        wait=wait,
        roles=scene.roles,
        step_s=step_s,
        differences=compare(np.ones(len(scene.roles), dtype=bool)),
        compare=compare,
        onset=None,
        busy_s=inside - slots.least_stay(wait, None, stays),
        slots=stays,
        least_s=least_s,
        collectives=fleet.collectives,
        queue_s=mean_queue_s(fleet, columns),
    )


def calmed(fleet: Fleet, scene: Scene) -> Calm | None:
    """Return the window without CPU queues, if these are at least the effect floor; else None.

    Queues of the last rank to come, or of most ranks.
    """
    if fleet.timed or len(fleet.ranks) < 2:
        return None
    calm = without_queue(fleet)
    per_step = nan_median(calm.steps.seconds, 0)
    gone_s = np.nanmedian(nan_median(fleet.steps.seconds, 0) - per_step)
    queued_s = np.nanmedian(nan_median(fleet.steps.own_s - calm.steps.own_s, 0))
    if not np.fmax(gone_s, queued_s) >= max(limits.EFFECT_SHARE * scene.step_s, limits.EFFECT_SECONDS):
        return None
    without, _ = prepare(calm, per_step)
    return Calm(calm, without, scene.step_s / without.step_s)


def calm_steps(calm: Calm, known: Known) -> list[Row]:
    """Return rows on ranks that are slow in few steps, found without CPU queues, other than
    those known.
    """
    return [
        replace(row, taken=Taken(calm.longer * row.taken.step_s))
        for row in rare_steps(WholeJob(calm.fleet, calm.scene), known)
        if isinstance(row, Row)
    ]


def calm_work(calm: Calm) -> list[Row]:
    """Return rows on work that moves between ranks, found without CPU queues.

    Each costs the same share of the step as without queues.
    """
    moving = moving_work(WholeJob(calm.fleet, calm.scene))
    found = standing(calm.scene, [row for row in moving if isinstance(row, Row)])
    return [replace(row, taken=Taken(calm.longer * row.found.lost_s)) for row in found]


def calm_ranks(fleet: Fleet, scene: Scene, calm: Calm, known: Ints) -> OddRanks | None:
    """Return rows on single ranks found without CPU queues, as shares of the step; None without
    any.

    `known`: ranks found in the window as it is; they are left out.
    """
    odd = find_odd_ranks(calm.fleet, calm.scene)
    found = standing(odd.scene, odd.rows)
    if not found:
        return None
    together_s = sum(row.found.lost_s for row in found)
    ranks = ranks_of(found)
    with_queue_s = _with_queue_s(fleet, scene, ranks)
    loss_s = max(calm.longer * together_s, with_queue_s)
    price_s = max(beside_queues_s(scene, ranks, together_s), with_queue_s)
    share = [row.found.lost_s / together_s for row in found]
    rows = tuple(
        replace(
            row,
            taken=Taken(loss_s * part),
            floor=replace(row.floor, part=part),
            price=Taken(price_s * part),
            with_it_s=None,
        )
        for row, part in zip(found, share, strict=True)
        if row.found.rows[0] not in known
    )
    if not rows:
        return None
    return replace(odd, rows=rows, notes=(WITHOUT_QUEUE,))


def beside_queues_s(scene: Scene, ranks: Ints, calm_s: float) -> float:
    """Seconds per step that ranks cost in the step as it was, if they cost `calm_s` without CPU
    queues.

    lost = E max(x - U, 0), U uniform in 0..u
    x    = calm · own / (own - queue): with the queueing of these ranks themselves
    u    = how much less of the step they queue than their peers

    The longer queueing of the others is where they wait for these ranks, and hides them, or before
    other collectives, and does not; which was not observed.
    """
    others = np.setdiff1d(np.flatnonzero(np.isin(scene.roles, scene.roles[ranks])), ranks)
    if scene.queue_s is None or not len(others):
        return calm_s
    queue_s, own_s = median(scene.queue_s[ranks]), median(mean_of_known(scene.own[ranks]))
    late_s = calm_s * own_s / max(own_s - queue_s, calm_s)
    spared_s = max(median(scene.queue_s[others]) - queue_s, 0.0)
    return late_s - spared_s / 2 if late_s >= spared_s else late_s**2 / (2 * spared_s)


def _with_queue_s(fleet: Fleet, scene: Scene, ranks: Ints) -> float:
    """Seconds per step regained if these ranks were as fast as their peers, and queued as
    they do.
    """
    own, roles = scene.own, scene.roles
    better = without(own, behind_each(fleet, own, roles, ranks))
    healed = repaired(better, roles, ranks)[ranks]
    better[ranks] = in_order_of(own[ranks], healed)
    return shrink(own, better, scene.pipelines, scene.busy_s)


def of_step(suspects: Sequence[Suspect], step_s: float) -> list[Suspect]:
    """Suspects of another view with lost_percent relative to the step as it was."""
    return [
        replace(one, lost_percent=100 * one.lost_seconds_per_step / max(step_s, one.lost_seconds_per_step))
        for one in suspects
    ]
