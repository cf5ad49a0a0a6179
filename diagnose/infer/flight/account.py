"""Find the ranks that block a hang, from the flight recorder dumps of all ranks. Pure.

For group g and collective s that some member has enqueued and not finished, a rank is
  missing     if it has enqueued only collectives before s
  unfinished  if it has enqueued s and not finished it, while another has: its device is stuck
  other       if it has enqueued another operation, or number of elements, as s than most members
  silent      if it left no dump

A rank whose first pending collective lacks another member waits for that one and is no suspect;
ranks that wait for each other in a circle are all suspects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.flight.dumps import Dump, Group, Pending
from rankscope.probes.base.errors import BadData

MISSING, UNFINISHED, OTHER, SILENT = "missing", "unfinished", "other", "silent"
# Most members of all pending collectives together: some seconds, or 150 collectives of 130,000
# ranks. Hangs have few.
_LOOKED_AT_MOST = budgets.PARTS_MOST * 4
# Operations whose inputs have equal size on all members, unlike all-to-all or scatter.
_ALIKE = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "barrier")


@dataclass(frozen=True, slots=True)
class Blame:
    """A blocking rank with the collective that shows it.

    `how`: MISSING, UNFINISHED, OTHER or SILENT; `waiting`: ranks that have enqueued the collective
    and wait; `said`: what differs, for OTHER.
    """

    rank: int
    how: str
    group: Group
    sequence: int
    operation: str
    waiting: tuple[int, ...]
    said: str = ""


def blames(dumps: Sequence[Dump]) -> tuple[Blame, ...]:
    """Blocking ranks, sorted by rank; none if nothing is pending.

    Raises BadData if there are too many members.
    """
    of_rank = {dump.rank: dump for dump in dumps}
    first = _first_pending(dumps)
    if sum(len(group.ranks) for group, _ in first) > _LOOKED_AT_MOST:
        raise BadData(f"ranks wait in {len(first)} collectives of more members in all than can be looked at")
    found: dict[int, Blame] = {}
    for kind in (_unfinished, _missing, _others):
        for (group, sequence), waiting in first.items():
            for blame in kind(of_rank, group, sequence, waiting):
                found.setdefault(blame.rank, blame)
    absent: dict[tuple[Group, int], tuple[int, ...]] = {}
    free = {rank: blame for rank, blame in found.items() if not _waits_for_another(of_rank, rank, absent)}
    chosen = free or found
    return tuple(chosen[rank] for rank in sorted(chosen))


def _first_pending(dumps: Sequence[Dump]) -> dict[tuple[Group, int], dict[int, Pending]]:
    """Return each rank's earliest pending collective of each group.

    By (group, sequence number): the collective by rank. Groups of one rank are left out.
    """
    found: dict[tuple[Group, int], dict[int, Pending]] = {}
    for dump in dumps:
        earliest: dict[Group, Pending] = {}
        for each in dump.pending:
            if len(each.group.ranks) > 1 and (
                each.group not in earliest or each.sequence < earliest[each.group].sequence
            ):
                earliest[each.group] = each
        for each in earliest.values():
            found.setdefault((each.group, each.sequence), {})[dump.rank] = each
    return found


def _missing(of_rank: Mapping[int, Dump], group: Group, sequence: int, waiting: Mapping[int, Pending]) -> list[Blame]:
    """Find members of the group that left no dump, or have not enqueued this collective.

    `of_rank`: dumps; `waiting`: the collective as each rank that waits in it reports it.
    """
    operation = next(iter(waiting.values())).operation
    ranks = tuple(sorted(waiting))
    found = []
    for rank in group.ranks:
        if rank not in of_rank:
            found.append(Blame(rank, SILENT, group, sequence, operation, ranks))
        elif of_rank[rank].enqueued.get(group, sequence) < sequence:
            found.append(Blame(rank, MISSING, group, sequence, operation, ranks))
    return found


def _unfinished(
    of_rank: Mapping[int, Dump], group: Group, sequence: int, waiting: Mapping[int, Pending]
) -> list[Blame]:
    """Find ranks in which this collective is pending while another member has completed it.

    `of_rank`: dumps; `waiting`: the collective by rank in which it is pending. Empty if no member
    has.
    """
    done = [rank for rank in group.ranks if rank in of_rank and of_rank[rank].completed.get(group, -1) >= sequence]
    if not done:
        return []
    finished = tuple(sorted(done))
    return [Blame(rank, UNFINISHED, group, sequence, mine.operation, finished) for rank, mine in waiting.items()]


def _others(of_rank: Mapping[int, Dump], group: Group, sequence: int, waiting: Mapping[int, Pending]) -> list[Blame]:
    """Find members that have enqueued another operation or size than most, if more than half agree.

    `waiting`: the collective by rank in which it is pending; `of_rank` is not used.
    """
    del of_rank
    shapes = {
        rank: (mine.operation, mine.elements if mine.operation in _ALIKE else 0) for rank, mine in waiting.items()
    }
    counts = Counter(shapes.values())
    (usual, most), *rest = counts.most_common()
    if not rest or most * 2 <= len(shapes):
        return []
    found = []
    others_of = tuple(sorted(one for one, its in shapes.items() if its == usual))
    for rank, shape in shapes.items():
        if shape != usual:
            differs = shape[0] if shape[0] != usual[0] else f"{shape[1]} elements"
            others = usual[0] if shape[0] != usual[0] else f"{usual[1]}"
            found.append(Blame(rank, OTHER, group, sequence, usual[0], others_of, f"{differs}, the others {others}"))
    return found


def _waits_for_another(
    of_rank: Mapping[int, Dump], rank: int, absent: dict[tuple[Group, int], tuple[int, ...]]
) -> bool:
    """Whether another member has not reached this rank's first unfinished collective.

    `absent`: cache by collective of up to two members that have not reached it, which is enough to
    find another.
    """
    dump = of_rank.get(rank)
    if dump is None or not dump.pending:
        return False
    group, sequence = dump.pending[0].group, dump.pending[0].sequence
    if (group, sequence) not in absent:
        late = (
            one for one in dict.fromkeys(group.ranks)
            if one not in of_rank or of_rank[one].enqueued.get(group, sequence) < sequence
        )  # fmt: skip
        absent[group, sequence] = tuple(islice(late, 2))
    return any(one != rank for one in absent[group, sequence])
