"""Which ranks are odd, do others wait for them, and what do they cost together?

With z >= 3 a rank is a suspect if a counter convicts it of half of its excess (z >= 1: the kernel's count of a CPU quota), or if it
hides a floor of what an odd one costs (one slow on average, one by jerks); and what a heavy stage hides counts as lost. With 16 ranks
or more some other one stalls in each step, and no step is shorter without the suspect: there who is slower in 90 % of the steps is
accused (from 65 ranks on also who is odd by a function).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.job.heavy_stage import heavy_stages, heavy_that_stand
from rankscope.diagnose.hypotheses.rank.selection import Selection, select
from rankscope.diagnose.hypotheses.rows import gain_s
from rankscope.diagnose.model import slots
from rankscope.diagnose.model.busy_host import even_queue_s, pools, queued_s
from rankscope.diagnose.model.replay import repaired, shrink
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.model.waiting import gain_in_turn, one_after_another
from rankscope.diagnose.past.baseline import Reference
from rankscope.diagnose.past.compared import Compared, compared
from rankscope.diagnose.stats.robust import nan_median, peers_median, trimmed_mean
from rankscope.diagnose.text import rank_list, seconds
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class OddRanks:
    """What was admitted about single ranks, the seconds per step that it costs, and the scene with the differences that count.

    `innocent_s`: own times in which all of them are as fast as those they are compared with.
    """

    among: Compared
    scene: Scene
    selection: Selection
    gained_s: float
    innocent_s: Floats
    notes: tuple[Note, ...]

    @property
    def rows(self) -> Ints:
        return self.selection.rows


def find_odd_ranks(fleet: Fleet, scene: Scene, reference: Reference | None = None) -> OddRanks:
    """The ranks that are slower than their peers, or than they were, and waited for; why others that are odd are acquitted is said in
    the notes."""
    among = compared(fleet, scene, reference)
    selection = select(among)
    scene = replace(scene, differences=selection.differences.of_first(among.count))
    notes = _acquitted(fleet, scene, selection.idle)
    rows, gained_s, more = _that_cost(among, scene, selection)
    kept = tuple(each for each in selection.admitted if each.row in set(rows.tolist()))
    told = among.about(np.array([each.row for each in kept], dtype=np.int64))
    innocent_s = _innocent(among, rows)
    return OddRanks(among, scene, replace(selection, admitted=kept), gained_s, innocent_s, (*notes, *more, *told))


def _acquitted(fleet: Fleet, scene: Scene, free: Ints) -> list[Note]:
    """Why ranks (rows) that are slower for sure and for which nobody is seen to wait are not accused."""
    untimed_s = _untimed(scene) if fleet.timed and len(free) else np.zeros(len(scene.own))
    notes = []
    for row in free:
        partly = untimed_s[row] >= limits.HOLDS_LEAST * scene.differences.excess_s[row]
        code = NoteCode.UNTIMED if partly else NoteCode.NOT_WAITED_FOR
        why = "where these wait meanwhile was not timed" if partly else "they do not wait for it"
        text = f"rank {int(fleet.ranks.number[row])} is busy longer than its peers, but {why}: not accused"
        notes.append(Note(code, text))
    return notes


def _that_cost(among: Compared, scene: Scene, selection: Selection) -> tuple[Ints, float, list[Note]]:
    """The ranks without which the step were shorter by the floor; of a large fleet those that are slower in nearly every step."""
    found, rows, fleet = scene.differences, selection.rows, among.fleet
    gained_s = _gained(among, scene, rows)
    floor_s = float(found.floor_s[rows].min()) if len(rows) else 0.0
    if gained_s >= floor_s or gained_s + _hidden(fleet, scene, _innocent(among, rows)) >= floor_s:
        return rows, max(gained_s, _freely_placed(among, scene, selection)), []
    sure = (found.slower_share >= limits.NEARLY_ALWAYS) | (
        selection.by_function[: among.count] & (len(scene.own) > limits.PEERS_EXACT)
    )
    always: Ints = rows[sure[rows]]
    if len(scene.own) >= limits.FLEET and len(always):
        text = f"the step is hardly shorter without the suspects today: of {len(scene.own)} ranks some other one stalls in each"
        return always, _gained(among, scene, always), [Note(NoteCode.STALLS_OF_OTHERS, text)]
    slower = rank_list(tuple(int(number) for number in fleet.ranks.number[rows]))
    by = f"{'by up to ' if len(rows) > 1 else 'by '}{seconds(float(found.excess_s[rows].max()))}"
    if _may_be_in_turn(fleet, scene, rows):
        text = (
            f"slower than the peers, {by} per step: {slower}; ranks of another role are as busy, and whether they work meanwhile or only "
            "afterwards was not seen: not accused"
        )
        return np.empty(0, dtype=np.int64), 0.0, [Note(NoteCode.UNTIMED, text)]
    text = (
        f"slower than the peers, {by} per step: {slower}; without that a step would be only {seconds(gained_s)} shorter, "
        "because others are as late: not accused"
    )
    return np.empty(0, dtype=np.int64), 0.0, [Note(NoteCode.NO_GAIN, text)]


def _turns(fleet: Fleet, scene: Scene) -> bool | None:
    """Whether roles work one after another; None where that cannot be told. Single collectives and pipelines tell it themselves."""
    if scene.slots is not None or scene.pipelines is not None:
        return False
    count = scene.own.shape[1]
    step = nan_median(fleet.steps.seconds, 0)[-count:]
    return one_after_another(scene.own, queued_s(fleet)[:, -count:], scene.roles, step)


def _may_be_in_turn(fleet: Fleet, scene: Scene, rows: Ints) -> bool:
    """Nobody can tell whether another role works meanwhile or afterwards, and of what all stay in collectives at least, as much may be
    waiting for these ranks as they are slower."""
    if not set(scene.roles) - set(scene.roles[rows]) or _turns(fleet, scene) is not None:
        return False
    transfer_s = float(trimmed_mean(slots.least_stay(scene.wait, None, None)[None, :])[0])
    return transfer_s >= float(scene.differences.excess_s[rows].max())


def _untimed(scene: Scene) -> Floats:
    """Per rank, how much longer its own time and its waiting are together than its peers': what nobody timed of these."""
    whole = scene.own + scene.wait
    return trimmed_mean(whole - peers_median(whole, scene.roles))


def _hidden(fleet: Fleet, scene: Scene, innocent_s: Floats) -> float:
    """Seconds per step that a heavy stage costs and slow ranks hide: without them it alone would be waited for. 0 where nobody says the
    roles: who is a peer is not sure enough for that."""
    if not all(fleet.ranks.role):
        return 0.0
    heavy = heavy_that_stand(fleet, scene, innocent_s)
    who = {stage.found.rows for stage in heavy}
    alone = gain_s(
        scene, scene.own, [stage for stage in heavy_stages(fleet, scene, scene.own) if stage.found.rows in who]
    )
    without_them = sum(stage.found.lost_s for stage in heavy)
    return max(without_them - alone, 0.0)


def _innocent(among: Compared, rows: Ints) -> Floats:
    """Own times of today in which these ranks take what those take that they are compared with."""
    return (
        repaired(among.scene.own, among.scene.roles, rows)[: among.count]
        if len(rows)
        else among.scene.own[: among.count]
    )


def _gained(among: Compared, scene: Scene, rows: Ints) -> float:
    """Seconds per step that the job were shorter without these ranks' excess."""
    gained = shrink(scene.own, _innocent(among, rows), scene.pipelines, scene.busy_s)
    if among.scene.slots is not None and scene.pipelines is None:
        gained = max(gained, slots.gain(among.scene.slots, scene.roles, rows))
    if len(rows) and _turns(among.fleet, scene):
        gained = max(gained, gain_in_turn(scene.own, _innocent(among, rows), scene.roles))
    return gained


def _freely_placed(among: Compared, scene: Scene, selection: Selection) -> float:
    """The same where strangers keep ranks from a CPU: without them those that share its CPUs stand behind each other alike
    (model/busy_host.py). 0 where nobody is kept from one."""
    own, count = among.scene.own, among.count
    kept = [each.row for each in selection.admitted if (each.found.component, each.found.cause) == ("cpu", "contended")]
    if not kept or count < len(own):  # of ranks as they were nobody knows who stood behind whom
        return 0.0
    behind, even = (each[:, -own.shape[1] :] for each in even_queue_s(among.fleet))
    pool = pools(among.fleet)
    placed = np.where(np.isin(pool, pool[kept])[:, None], own + even - np.fmin(behind, own), own)
    return shrink(scene.own, repaired(placed, among.scene.roles, selection.rows), scene.pipelines, scene.busy_s)
