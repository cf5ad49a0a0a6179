"""The views in which one window is judged: a table of transforms of its fleet.

Each row of `VIEWS` makes a view, or none where it would show nothing else, from the fleet and from
what the views before it found. All views are judged alike (compare, propose, select); nothing else
knows of them.

as it is         All steps, or those from the onset on if they became longer (prepare.py). Beside a
                 baseline, ranks whose peers tell nothing have their own past as peers
                 (past/compared.py).
without queueing The same without waiting for CPUs (model/busy_host.py), where that is a lower bound
                 of the step: it hides whose work is too long, since who computes for longer takes
                 the CPU from its peers. Ranks that queue themselves are found in the window as it
                 is. Its rows cost the same share of the step, because all work takes longer alike;
                 slow ranks, if more, what the queues leave of it (model/behind.py). They count
                 where the window as it is does not explain these ranks.
a stretch        Where nothing was found: the steps in which one rank is slower than its peers, if
                 clearly no accident (stats/scan.py). Functions and counters are those of the whole
                 window. A CPU that others took for a while is no fault of the rank; where strangers
                 use 5 % of a host, what comes and goes there is theirs.

Timings that others measured have more views, since their functions are known by step
(judge_steps_file.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.job.moving_work import moving_work
from rankscope.diagnose.infer.causes.rank.rare_steps import rare_steps
from rankscope.diagnose.infer.causes.rows import Row, Taken, ranks_of
from rankscope.diagnose.infer.causes.whole_job import WholeJob, propose, slow_ranks
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.behind import price_of
from rankscope.diagnose.infer.model.busy_host import busy_shares, without_queue
from rankscope.diagnose.infer.past.baseline import Reference
from rankscope.diagnose.infer.past.compared import Compared, compared
from rankscope.diagnose.infer.solve.enough import not_compared
from rankscope.diagnose.infer.solve.notes import pauses
from rankscope.diagnose.infer.solve.prepare import part_of, prepare
from rankscope.diagnose.infer.solve.select import Found, select_again
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import nan_median, peers_median
from rankscope.diagnose.stats.scan import Stretch, strongest_stretch
from rankscope.probes.base.arrays import Ints

WITHOUT_QUEUE = Note(
    NoteCode.WITHOUT_QUEUE,
    "ranks wait so long for CPUs that their steps hide who computes longer: judged without that waiting",
)


@dataclass(frozen=True, slots=True)
class View:
    """One view of a window: the job in it, and the ranks to compare.

    `join`: returns what was found so far together with what was found in this view. `notes`: about
        its steps.
    """

    job: WholeJob
    among: Compared
    join: Callable[[Found | None, Found], Found]
    notes: tuple[Note, ...] = ()


def as_it_is(fleet: Fleet, reference: Reference | None, _: Found | None) -> View:
    """View the window as it is, from the onset on if its steps became longer."""
    scene, notes = prepare(fleet, nan_median(fleet.steps.seconds, 0), pauses.find(fleet))
    job, among = WholeJob(fleet, scene, reference), compared(fleet, scene, reference)
    return View(job, among, lambda _, here: here, (*not_compared(fleet, reference is not None), *notes))


# ---- without queueing ------------------------------------------------------------------------------------------------


def without_queueing(fleet: Fleet, _: Reference | None, found: Found | None) -> View | None:
    """View the window without CPU queues; None where these are below the effect floor.

    Counted are queues of the last rank to come, or of most ranks. None also for files of timings
    and single ranks.
    """
    if fleet.timed or len(fleet.ranks) < 2 or found is None:
        return None
    calm, step_s = without_queue(fleet), found.job.scene.step_s
    per_step = nan_median(calm.steps.seconds, 0)
    gone_s = np.nanmedian(nan_median(fleet.steps.seconds, 0) - per_step)
    queued_s = np.nanmedian(nan_median(fleet.steps.own_s - calm.steps.own_s, 0))
    if not np.fmax(gone_s, queued_s) >= max(limits.EFFECT_SHARE * step_s, limits.EFFECT_SECONDS):
        return None
    scene = prepare(calm, per_step)[0]
    job = WholeJob(calm, scene, asks=(slow_ranks, rare_steps, moving_work))
    return View(job, compared(calm, scene, None), _with_calm)


def _with_calm(found: Found | None, calm: Found) -> Found:
    """Select again with those rows of the view without queues that explain what nothing else does."""
    assert found is not None
    known = ranks_of(row for row in found.rows if row.rank is not None)
    slow, longer = slow_without_queue(found, calm, known), _longer(found, calm)
    explained = ranks_of(row for row in found.rows if row.found.scope == "rank")
    others = [row for row in calm.rows if row.rank is None]
    seldom = [row for row in others if row.found.scope == "rank" and row.found.rows[0] not in explained]
    more = [_share_of_step(row, longer) for row in seldom]
    moving = [row for row in others if row.found.scope == "all"]
    if not slow and not more and not found.rows:
        more = [_share_of_step(row, longer) for row in moving]
    if not slow:
        return select_again(found, more) if more else found
    of_calm = replace(calm.odd, job=replace(calm.job, slow=tuple(slow)), notes=(WITHOUT_QUEUE,))
    # Where no rank stands as it is, the same ranks are proposed without queues alone.
    kept, told = (found.job.slow, (*found.told, of_calm)) if len(known) else ((), (of_calm,))
    odd = replace(found.odd, job=replace(found.job, slow=(*kept, *slow)))
    return select_again(replace(found, odd=odd, proposals=propose(odd.job), told=told), more)


def _share_of_step(row: Row, longer: float) -> Row:
    """Give a row the cost of the same share of a step that is `longer` times as long."""
    return replace(row, taken=Taken(longer * row.found.lost_s))


def _longer(found: Found, calm: Found) -> float:
    """Ratio of the step length as it is to that without queues."""
    return found.job.scene.step_s / calm.job.scene.step_s


def slow_without_queue(found: Found, calm: Found, known: Ints) -> list[Row]:
    """Return rows about ranks that are slow without queues, at what they cost in the step as it is.

    `known`: ranks (rows of the fleet) that are left out.
    """
    rows = [row for row in calm.rows if row.rank is not None]
    if not rows:
        return []
    together_s = sum(row.found.lost_s for row in rows)
    loss_s, price_s = price_of(found.job.fleet, found.job.scene, ranks_of(rows), together_s, _longer(found, calm))
    shares = [row.found.lost_s / together_s for row in rows]
    return [
        replace(row, taken=Taken(loss_s * part), price=Taken(price_s * part), floor=replace(row.floor, part=part), with_it=None)
        for row, part in zip(rows, shares, strict=True) if row.found.rows[0] not in known
    ]  # fmt: skip


# ---- a stretch -------------------------------------------------------------------------------------------------------


def one_stretch(fleet: Fleet, reference: Reference | None, found: Found | None) -> View | None:
    """View the steps in which one rank is slower, where nothing was found before.

    None with a baseline, for files of timings, and where other processes use 5 % of that rank's
    host.
    """
    if found is None or found.rows or fleet.timed or reference is not None:
        return None
    stretch = find_stretch(fleet, found.job.scene.roles)
    if stretch is None or float(busy_shares(fleet)[stretch.row]) >= limits.EFFECT_SHARE:
        return None
    per_step = nan_median(fleet.steps.seconds, 0)
    scene = part_of(fleet, found.job.scene.roles, per_step, slice(stretch.begin, stretch.end))
    notes = (about(stretch.begin, stretch.end, fleet.steps.count),)
    return View(WholeJob(fleet, scene, asks=(slow_ranks,)), compared(fleet, scene, None), _of_stretch, notes)


def _of_stretch(found: Found | None, inside: Found) -> Found:
    """Return what was found in the stretch, if anything but a CPU that others took; else `found`.

    `found`: in the whole window; `inside`: in the stretch.
    """
    assert found is not None
    rows = [row for row in inside.rows if (row.found.component, row.found.cause) != ("cpu", "contended")]
    told = tuple(replace(one, notes=()) for one in inside.told)
    if not rows:
        return found
    return replace(inside, rows=tuple(rows), told=told, before=found, waste=found.waste, spending=found.spending)


def find_stretch(fleet: Fleet, role: Ints) -> Stretch | None:
    """Return the steps in which some rank is slower than its peers, if clearly no accident; else None."""
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


Views = Callable[[Fleet, Reference | None, Found | None], View | None]
VIEWS: tuple[Views, ...] = (as_it_is, without_queueing, one_stretch)
