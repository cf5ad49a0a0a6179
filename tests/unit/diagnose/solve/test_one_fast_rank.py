"""A rank that is faster than all others, by a core for itself, makes nobody slow who shares a core as most ranks do."""

from __future__ import annotations

import pytest
from builders import BUSY, QUEUE, Job, build

from rankscope.diagnose.infer.solve.judge import diagnose

FAST, SLOW, QUEUE_S = 0, 3, 0.04


def on_two_cores(seed: int, slow_s: float) -> Job:
    """Four ranks, of which three share a core and stand behind each other there; one of them computes for so much longer."""
    sharing = [rank for rank in range(4) if rank != FAST]
    extra = {rank: [(QUEUE, QUEUE_S)] for rank in sharing}
    extra[SLOW] = [*extra[SLOW], (BUSY, slow_s)]
    cores = {rank: {"cpus": "1" if rank == FAST else "0"} for rank in range(4)}
    made = Job(ranks=4, seed=seed, extra=extra, ranks_columns=cores)
    made.counters += [
        {"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": 4000 + other, "value": QUEUE_S / 2 * made.steps}
        for rank in sharing
        for other in sharing
        if other != rank
    ]
    return made


@pytest.mark.parametrize("seed", range(4))
def test_beside_a_slow_rank_and_a_fast_one_the_two_others_are_as_usual(seed: int) -> None:
    found = diagnose(build(on_two_cores(seed, 0.05))).suspects
    assert [(each.component, each.ranks) for each in found] == [("python", (SLOW,))]


@pytest.mark.parametrize("seed", range(2))
def test_nobody_is_slow_where_most_share_a_core(seed: int) -> None:
    assert diagnose(build(on_two_cores(seed, 0.0))).suspects == ()
