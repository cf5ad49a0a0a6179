"""NCCL is asked who has not joined only where a job stands still, and believed only if it says so twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rankscope.observer.live.ras import is_hanging, missing
from rankscope.probes.nccl.ras import RasSilence
from rankscope.probes.nccl.ras_answer import Communicator, Missing, OperationCounts, Place, RasAnswer

PLACES = tuple(Place(rank, f"node{rank // 2}", 700 + rank, rank % 2, rank % 2) for rank in range(5))


def ranks_here() -> Any:
    """Ranks 0 and 1 of 5."""
    return [
        SimpleNamespace(
            pid=9000 + rank, identity=SimpleNamespace(rank=rank, inner_pid=700 + rank, node="node0", world_size=5)
        )
        for rank in range(2)
    ]


def answer(counts: list[int], absent: tuple[Missing, ...] = (), size: int = 5) -> RasAnswer:
    groups = tuple(
        OperationCounts(
            "AllReduce", count, counts.count(count), tuple(p for p, c in zip(PLACES, counts, strict=True) if c == count)
        )
        for count in sorted(set(counts), reverse=True)
    )
    return RasAnswer("2.28.7", (Communicator("0xabc", size, PLACES, groups, absent, ()),), 0, (), True)


def asking(*answers: RasAnswer | RasSilence) -> Any:
    left = list(answers)
    return lambda pid: left.pop(0)


def test_hosts_are_known_by_the_address_that_nccl_tells_as_containers_count_their_own_pids() -> None:
    gone = tuple(
        Missing(Place(rank, host, 701, 0, 0), unresponsive=True, dead=False)
        for rank, host in ((0, "127.0.0.1"), (1, "10.0.0.7"), (2, "10.0.0.8"))
    )
    rows, _ = missing(ranks_here(), {"10.0.0.7"}, asking(*(answer([7] * 5, gone, size=3),) * 2), pause_s=0)
    assert [row.rank for row in rows] == [1, 1, -1]


def test_a_job_is_asked_only_if_it_stands_still() -> None:
    assert not is_hanging({1: 0.4, 2: 3.0}, 20.0)
    assert is_hanging({1: 0.4, 2: 13.0}, 20.0)
    assert not is_hanging({1: 3.0}, 4.0), "a slow step is no hang"


def test_a_rank_that_stays_behind_is_named_wherever_it_runs() -> None:
    late = answer([41, 41, 41, 40, 41])
    rows, notes = missing(ranks_here(), (), asking(late, late), pause_s=0)
    assert [(row.rank, row.name, row.value, row.limit) for row in rows] == [(3, "ras.behind", 1.0, 41)]
    assert "rank 3 (pid 703 on node1) has launched 40 AllReduce" in notes[0]


def test_a_job_that_moves_accuses_nobody() -> None:
    rows, notes = missing(
        ranks_here(), (), asking(answer([41, 40, 41, 41, 41]), answer([43, 43, 42, 43, 43])), pause_s=0
    )
    assert (rows, notes) == ([], ())


def test_ranks_that_do_not_answer_are_named_and_unknown_ones_are_not_guessed() -> None:
    gone = (Missing(PLACES[4], unresponsive=True, dead=True),)
    rows, notes = missing(ranks_here(), (), asking(*(answer([7] * 5, gone),) * 2), pause_s=0)
    assert [(row.rank, row.name) for row in rows] == [(4, "ras.missing")]
    assert "is dead" in notes[0]
    rows, _ = missing(ranks_here(), (), asking(*(answer([7] * 5, gone, size=3),) * 2), pause_s=0)
    assert rows[0].rank == -1, "its number in a smaller communicator is not its rank"


def test_silence_is_a_note() -> None:
    assert missing(ranks_here(), (), asking(RasSilence("nothing listens")), pause_s=0) == ([], ("nothing listens",))
