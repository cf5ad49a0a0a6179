"""Which of several processes with one number works with the other ranks: the same as if all were compared with all, for less work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_trees import Tree, torchrun

from rankscope.observer.census.identity import Claim
from rankscope.observer.census.kinship import Connections, Pair
from rankscope.observer.census.ranks import find_ranks
from rankscope.observer.census.rules.taken import Chosen, ChosenRanks, Evidence

PIDS = range(1, 9)
ADDRESSES = (b"0100007F", b"0700000A")
ends = st.tuples(st.sampled_from(ADDRESSES), st.integers(1, 3)).map(lambda end: end[0] + b":%04X" % end[1])
pairs = st.frozensets(st.tuples(ends, ends), max_size=3)
claims = st.tuples(st.sampled_from(("one", "other")), st.integers(0, 2), st.integers(1000, 1001))


def chosen(job: str, rank: int, owner: int) -> Chosen:
    return Chosen(cast(Any, SimpleNamespace(owner=owner)), Claim("", job, rank, rank, 3, 3, "", False))


def compared_with_all(
    taken: ChosenRanks, connections: Connections, cgroups: dict[int, str], pid: int
) -> tuple[bool, bool]:
    mine = taken[pid]
    others = [
        at
        for at, one in taken.items()
        if (one.claim.job, one.process.owner) == (mine.claim.job, mine.process.owner)
        and one.claim.rank != mine.claim.rank
    ]
    linked = connections.groups([pid, *others], {})
    return any(pid in group for group in linked), cgroups[pid] in [cgroups[other] for other in others]


@settings(max_examples=60, deadline=None)
@given(
    own=st.lists(pairs, min_size=len(PIDS), max_size=len(PIDS)),
    spaces=st.lists(st.integers(1, 2), min_size=len(PIDS), max_size=len(PIDS)),
    groups=st.lists(st.sampled_from("ab"), min_size=len(PIDS), max_size=len(PIDS)),
    changes=st.lists(st.tuples(st.sampled_from(PIDS), st.none() | claims), max_size=20),
)
def test_evidence_follows_every_change_of_who_is_taken_for_what(
    own: list[frozenset[Pair]],
    spaces: list[int],
    groups: list[str],
    changes: list[tuple[int, tuple[str, int, int] | None]],
) -> None:
    connections = Connections(
        _own={(pid, 0): mine for pid, mine in zip(PIDS, own, strict=True)}, _spaces=dict(zip(PIDS, spaces, strict=True))
    )
    cgroups, taken = dict(zip(PIDS, groups, strict=True)), ChosenRanks()
    evidence = Evidence(taken, lambda pid: connections.ends(pid, 0), cgroups.__getitem__)
    for pid, claim in changes:
        if claim is None:
            taken.pop(pid, None)
        else:
            taken[pid] = chosen(*claim)
        for each in taken:
            assert evidence.of(each) == compared_with_all(taken, connections, cgroups, each)


def test_processes_that_claim_the_same_ranks_are_not_each_compared_with_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, count = Tree(tmp_path), 60
    for number in range(2 * count):
        said = torchrun(number // 2, 0, count)
        tree.process(1000 + number, 1, "python3", ["python3", "train.py"], said, uid=1666, cgroup=f"/{number % 2}")
    calls = 0
    own = Connections.own

    def counted(connections: Connections, pid: int, parent: int) -> frozenset[Pair]:
        nonlocal calls
        calls += 1
        return own(connections, pid, parent)

    monkeypatch.setattr(Connections, "own", counted)
    assert len(find_ranks(tree.root).ranks) == count
    assert calls <= 20 * 2 * count
