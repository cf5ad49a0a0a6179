"""Who is missing, by the flight recorders of all ranks. Pure.

Of a group g and its collective s, which some member has enqueued and not finished:

  missing     has enqueued only collectives before s: it did not come
  unfinished  has enqueued s and not finished it, while another member has: its device does not
  other       has enqueued another operation as s, or another number of elements, than most of the members
  silent      left no dump

A rank whose first pending collective misses another member waits for that one and is not accused; ranks that wait for one another in a
circle all are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rankscope.diagnose import budgets
from rankscope.diagnose.flight.dumps import Dump, Group, Pending
from rankscope.probes.errors import BadData

MISSING, UNFINISHED, OTHER, SILENT = "missing", "unfinished", "other", "silent"
# Members of all collectives in which ranks wait, together: a few seconds. Of 130,000 ranks 150 in which all meet; who hangs waits in few.
_LOOKED_AT_MOST = budgets.PARTS_MOST * 4
# The inputs of these are alike on all members; of others (all-to-all, scatter) they need not be.
_ALIKE = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "barrier")


@dataclass(frozen=True, slots=True)
class Blame:
    """One rank, and the collective that shows it. `waiting`: ranks that have enqueued it and wait; `said`: what differs, of `other`."""

    rank: int
    how: str
    group: Group
    sequence: int
    operation: str
    waiting: tuple[int, ...]
    said: str = ""


def blames(dumps: Sequence[Dump]) -> tuple[Blame, ...]:
    """Those who keep the others waiting, by rank; nobody where nothing is pending."""
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
    """(group, sequence) → who has it pending; of each rank and group the earliest alone, for the later ones wait for that."""
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
    done = [rank for rank in group.ranks if rank in of_rank and of_rank[rank].completed.get(group, -1) >= sequence]
    if not done:
        return []
    finished = tuple(sorted(done))
    return [Blame(rank, UNFINISHED, group, sequence, mine.operation, finished) for rank, mine in waiting.items()]


def _others(of_rank: Mapping[int, Dump], group: Group, sequence: int, waiting: Mapping[int, Pending]) -> list[Blame]:
    """Where all have come, and not to the same: those of the smaller part, who are fewer than half."""
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
    """Whether a member has not come to the first collective that this rank has not finished; the later ones wait for that.

    `absent`: two who have not come to a collective, kept for all who wait there; one of two is another than the rank.
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
