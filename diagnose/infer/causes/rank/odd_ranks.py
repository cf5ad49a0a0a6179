"""Ranks compared with their peers, and rows of ../rows.py for the causes of slower ones.

A row removes a rank's excess over its peers that are no suspects, or, with several hypotheses on
one rank, its part of it; what was in the baseline is a row of its own (by_design.py). The price
includes the delay of others that queue for a CPU behind the rank (model/behind.py). Where strangers
occupy CPUs of ranks, the ranks with the same CPUs would, without them, queue behind each other
alike (model/busy_host.py): that accompanies the row. For threads of the rank's own process, what
they take from ranks with the same CPUs does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.rank.by_design import Part, with_design
from rankscope.diagnose.infer.causes.rank.selection import Selection, select
from rankscope.diagnose.infer.causes.rank.suspects import merged_suspects, why_not
from rankscope.diagnose.infer.causes.rank.threads import takes_cpu
from rankscope.diagnose.infer.causes.rows import Clear, Floor, OfRank, Row, Taken, gain_s, of_ranks, ranks_of
from rankscope.diagnose.infer.causes.whole_job import WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet, Slots
from rankscope.diagnose.infer.model import slots
from rankscope.diagnose.infer.model.behind import behind_each, without
from rankscope.diagnose.infer.model.busy_host import even_queue_s, pools, queued_s, taken_by_threads_s
from rankscope.diagnose.infer.model.replay import in_order_of, repaired
from rankscope.diagnose.infer.model.scene import Scene, mean_step_s
from rankscope.diagnose.infer.model.waiting import one_after_another
from rankscope.diagnose.infer.past.compared import Compared
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import nan_median, peers_median, trimmed_mean
from rankscope.diagnose.text import rank_list, seconds
from rankscope.probes.base.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class OddRanks:
    """Single ranks compared with their peers.

    `job`: with rows about those that are slower, and the scene with the differences. `among`: the
        ranks compared, past ones too. `notes`: on slower ranks for which no rank waits.
    """

    among: Compared
    job: WholeJob
    selection: Selection
    notes: tuple[Note, ...]

    def suspects(self, found: Sequence[Row], scene: Scene, fleet: Fleet) -> tuple[list[Suspect], list[Note]]:
        """Convert selected rows to suspects; return them with notes on peers and on ranks left out.

        `found`: the selected rows; those of another view are ignored. `scene`, `fleet`: of the
            selection; another view of the window has other steps.
        """
        mine = {id(row.rank) for row in self.job.slow}
        stand = [
            (replace(row.rank.why, found=replace(row.rank.why.found, evidence=row.found.evidence)), row.found.lost_s)
            for row in found
            if row.rank is not None and id(row.rank) in mine
        ]
        ranks = np.array(sorted({why.row for why, _ in stand}), dtype=np.int64)
        accused = ranks_of(row for row in found if row.rank is not None)
        notes = [*self._fallen(found, accused, scene), *self.among.about(ranks), *why_not(self.among, self.selection)]
        whole = [row.found.rows[0] for row in found if row.before and row.floor.part >= 1]
        if whole:
            who = rank_list(tuple(sorted(self.among.fleet.ranks.number[whole].tolist())))
            notes.append(Note(NoteCode.DESIGNED, f"{who}: slower than the peers, but so already in the baseline"))
        return merged_suspects(self.among, self.selection, stand, mean_step_s(fleet.steps.seconds, scene)), notes

    def _fallen(self, found: Sequence[Row], stand: Ints, scene: Scene) -> list[Note]:
        """Return notes on ranks that are clearly slower but no suspects, or on suspects with hardly any gain.

        `found`: the selected rows; `stand`: ranks (rows) that are suspects.
        """
        fleet = self.among.fleet
        gone = np.setdiff1d(self.selection.rows, stand)
        if not len(gone):
            lasting = [row for row in found if row.lasting]
            if not lasting or gain_s(scene, lasting) >= limits.EFFECT_SHARE * scene.step_s:
                return []
            text = f"the step is hardly shorter without the suspects today: of {len(scene.own)} ranks some other one stalls in each"
            return [Note(NoteCode.STALLS_OF_OTHERS, text)]
        slower = rank_list(tuple(int(number) for number in fleet.ranks.number[gone]))
        excess_s = float(self.job.scene.differences.excess_s[gone].max())
        by = f"{'by up to ' if len(gone) > 1 else 'by '}{seconds(excess_s)}"
        if _may_be_in_turn(self.job.scene, gone, excess_s):
            text = (
                f"slower than the peers, {by} per step: {slower}; ranks of another role are as busy, and whether they work "
                "meanwhile or only afterwards was not seen: not accused"
            )
            return [Note(NoteCode.UNTIMED, text)]
        fallen = [row for row in self.job.slow if row.found.rows[0] in gone]
        gained_s = gain_s(scene, [*found, *fallen]) - gain_s(scene, found)
        text = (
            f"slower than the peers, {by} per step: {slower}; without that a step would be only {seconds(gained_s)} shorter, "
            "because others are as late: not accused"
        )
        return [Note(NoteCode.NO_GAIN, text)]


def compare(job: WholeJob, among: Compared) -> OddRanks:
    """Compare ranks with their peers and ask for causes of slower ones.

    `among`: the ranks of the job, and earlier ones with which some are compared.
    """
    selection = select(among)
    scene = replace(job.scene, differences=selection.differences.of_first(among.count))
    if len(selection.rows):
        scene = replace(scene, in_turn=_turns(job.fleet, scene))
    rows = _rows(among, scene, selection, with_design(among, selection, job.reference))
    notes = _acquitted(job.fleet, scene, selection.idle)
    return OddRanks(among, replace(job, scene=scene, slow=rows), selection, tuple(notes))


def _rows(among: Compared, scene: Scene, selection: Selection, parts: Sequence[Part]) -> tuple[Row, ...]:
    """Return a row for each part: what it took from the rank, how clear that is, its price, what accompanies it.

    `parts`: admitted hypotheses and imbalances of the baseline, each with its part of a rank's excess.
    """
    if not parts:
        return ()
    own, found = among.scene.own, scene.differences
    innocent = repaired(own, among.scene.roles, selection.rows)
    sure = (found.slower_share >= limits.NEARLY_ALWAYS) | (
        selection.by_function[: among.count] & (len(scene.own) > limits.PEERS_EXACT)
    )
    lasting = sure & (len(scene.own) >= limits.FLEET)
    placed, roles = _freely_placed(among, selection) | _without_threads(among, selection), among.scene.roles
    # For earlier windows of a rank it is unknown which rank queued behind which.
    behind = behind_each(among.fleet, own, roles, selection.rows) if len(own) == among.count else {}
    behind = {rank: found for rank, found in behind.items() if rank not in placed}
    healed = repaired(without(own, behind), roles, selection.rows)
    result = []
    for one in parts:
        each, part = one.why, one.part
        rank, of_cpu = [each.row], each.found.component == "cpu"
        price = of_ranks(rank, part * (own[rank] - (healed[rank] if of_cpu else in_order_of(own[rank], healed[rank]))))
        with_it: Taken | None = None
        if each.row in placed and not one.before:
            with_it = placed.pop(each.row)
            with_it.own_s[0] *= part
        elif each.row in behind and not one.before:
            others, seconds_s = behind.pop(each.row)
            price = of_ranks(np.concatenate([rank, others]), np.vstack([price.own_s, seconds_s]))
        row = Row(
            replace(each.found, lost_s=float("nan")),
            of_ranks(rank, part * (own[rank] - innocent[rank])),
            Clear(float(found.z[each.row]), float(found.freedom[each.row])),
            Floor(one.of_rest / part * float(found.floor_s[each.row]) / scene.step_s, part),
            price=price,
            with_it=with_it,
            rank=OfRank(each, bool(lasting[each.row]), one.before),
        )
        result.append(row)
    return tuple(result)


def _freely_placed(among: Compared, selection: Selection) -> dict[int, Taken]:
    """Map each rank that strangers drive off a CPU to what that takes from it and from ranks on the same CPUs.

    The other ranks of a pool of CPUs are in the first of its entries only; seconds above what they would
    take if no rank were driven off. Empty if earlier windows are compared.
    """
    own, count = among.scene.own, among.count
    kept = [each.row for each in selection.admitted if (each.found.component, each.found.cause) == ("cpu", "contended")]
    if not kept or count < len(own):  # for earlier windows it is unknown which rank queued behind which
        return {}
    behind, even = (each[:, -own.shape[1] :] for each in even_queue_s(among.fleet))
    pool = pools(among.fleet)
    placed = np.where(np.isin(pool, pool[kept])[:, None], own + even - np.fmin(behind, own), own)
    result, told = dict[int, Taken](), set[int]()
    for row in kept:
        others = np.flatnonzero((pool == pool[row]) & (int(pool[row]) not in told))
        told.add(int(pool[row]))
        result[row] = _with_others(among, selection, row, others, placed)
    return result


def _with_others(among: Compared, selection: Selection, row: int, others: Ints, healed: Floats) -> Taken:
    """Return the Taken of the seconds, ranks x steps, by which `row` and `others` exceed `healed`.

    Of `others` (rows) suspects are left out; `healed`: own times of all ranks, from which the excess of
    suspects is removed here.
    """
    more = among.scene.own - repaired(healed, among.scene.roles, selection.rows)
    ranks = np.concatenate([[row], np.setdiff1d(others, selection.rows)]).astype(np.int64)
    return of_ranks(ranks, more[ranks])


def _without_threads(among: Compared, selection: Selection) -> dict[int, Taken]:
    """Map each rank whose own threads take its CPU to what that takes from it and from ranks on the same CPUs."""
    own, pool, result = among.scene.own, pools(among.fleet), dict[int, Taken]()
    if among.count < len(own):  # for earlier windows it is unknown which rank queued behind which
        return result
    for each in selection.admitted:
        if not takes_cpu(each.found, each.case):
            continue
        threads, row = each.case.threads, each.row
        taken = taken_by_threads_s(among.fleet, row, threads.behind_s, threads.part)[:, -own.shape[1] :]
        healed = np.where((pool == pool[row])[:, None], own - np.fmin(taken, own), own)
        result[row] = _with_others(among, selection, row, np.flatnonzero(pool == pool[row]), healed)
    return result


def _acquitted(fleet: Fleet, scene: Scene, free: Ints) -> list[Note]:
    """Return a note per rank in `free` (rows): it is clearly slower, but no rank is seen to wait for it."""
    untimed_s = _untimed(scene) if fleet.timed and len(free) else np.zeros(len(scene.own))
    notes = []
    for row in free:
        partly = untimed_s[row] >= limits.HOLDS_LEAST * scene.differences.excess_s[row]
        code = NoteCode.UNTIMED if partly else NoteCode.NOT_WAITED_FOR
        why = "where these wait meanwhile was not timed" if partly else "they do not wait for it"
        text = f"rank {int(fleet.ranks.number[row])} is busy longer than its peers, but {why}: not accused"
        notes.append(Note(code, text))
    return notes


def _turns(fleet: Fleet, scene: Scene) -> bool | None:
    """Whether roles work one after another; None where it is not clear.

    False where single collectives or pipelines show the waiting. Where collectives are known for a
    part of the steps, True if the others wait for each role alone.
    """
    if (scene.slots is not None and scene.slots.whole) or scene.pipelines is not None:
        return False
    if scene.slots is not None and scene.slots.part >= 1 and _each_is_waited_for(scene, scene.slots):
        return True
    count = scene.own.shape[1]
    step = nan_median(fleet.steps.seconds, 0)[-count:]
    return one_after_another(scene.own, queued_s(fleet)[:, -count:], scene.roles, step)


def _each_is_waited_for(scene: Scene, known: Slots) -> bool:
    """Whether all others wait for each role alone, for half of its longest rank's work or more."""
    alone_s = slots.alone_s(known, scene.roles)
    if alone_s is None:
        return False
    longest = [trimmed_mean(scene.own[scene.roles == role]).max() for role in np.unique(scene.roles)]
    return bool((alone_s >= limits.HOLDS_LEAST * np.array(longest)).all())


def _may_be_in_turn(scene: Scene, rows: Ints, excess_s: float) -> bool:
    """Whether another role may work only after these ranks, and all wait for them for so long.

    True only if the order of roles is unclear and the transfer is at least `excess_s`.
    """
    if not set(scene.roles) - set(scene.roles[rows]) or scene.in_turn is not None:
        return False
    transfer_s = float(trimmed_mean(slots.least_stay(scene.wait, None, None)[None, :])[0])
    return transfer_s >= excess_s


def _untimed(scene: Scene) -> Floats:
    """Return, by rank, the excess of own time plus waiting over the peers': seconds per step not timed on them."""
    whole = scene.own + scene.wait
    return trimmed_mean(whole - peers_median(whole, scene.roles))
