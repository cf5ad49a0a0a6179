"""A census tells whether a job has ranks on other hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from found_rank import RANK

from rankscope.observer.census.found import RankCensus


def census(*found: tuple[str, int, int]) -> RankCensus:
    """Of ranks by job, rank and size of the world."""
    return RankCensus(
        tuple(
            replace(RANK, identity=replace(RANK.identity, job=job, rank=rank, world_size=size))
            for job, rank, size in found
        ),
        (),
        (),
    )


@pytest.mark.parametrize(
    ("found", "jobs", "whole"),
    [
        ([("a", 0, 2), ("a", 1, 2)], {"a"}, True),
        ([("a", 0, 2)], {"a"}, False),  # the other rank is on another host, or not found
        ([("a", 4, 2), ("a", 4, 2)], {"a"}, False),  # one rank by two processes
        ([("a", 0, 0)], {"a"}, False),  # nobody knows how many there are
        ([], {"a"}, False),
        ([("alone", 0, 1), ("a", 1, 2)], {"alone"}, True),
        ([("alone", 0, 1), ("a", 1, 2)], {"alone", "a"}, False),
    ],
)
def test_whether_all_ranks_of_jobs_are_here(found: list[tuple[str, int, int]], jobs: set[str], whole: bool) -> None:
    assert census(*found).has_all_of(jobs) is whole
