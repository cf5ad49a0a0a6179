"""Windows that the labs recorded are judged as well as they ever were: which culprit, and nobody who is innocent."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pace import pace_s

from corpuskit import files, tables
from corpuskit.archive import archives, opened
from corpuskit.judging import judges
from corpuskit.tables import Judged

# Two minutes on both of two usual cores, all processes together. A core that counts three times as fast reads memory no faster than
# others, least of all beside others: half of that time is enough whatever it is in paces.
ENOUGH_PACES, ENOUGH_S = 1200, 120.0


@pytest.fixture(scope="module")
def corpus() -> Iterator[tuple[list[Judged], float, float]]:
    """Every case with its answer, and what it cost to judge them: CPU seconds, and paces of this machine."""
    with opened(archives()) as unpacked:
        pace, began = pace_s(), children_s()
        with judges(unpacked, os.cpu_count() or 1) as judge:
            judged = list(zip(unpacked.cases, judge(unpacked.cases), strict=True))
        cost_s = children_s() - began
        yield judged, cost_s, cost_s / max(pace, pace_s())


def children_s() -> float:
    """CPU seconds of processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def test_no_kind_is_judged_worse_than_the_table_says(corpus: tuple[list[Judged], float, float]) -> None:
    assert list(files.fallen(corpus[0])) == [], "\n".join(tables.bad_table(corpus[0]))


def test_the_whole_corpus_is_judged_in_two_minutes(corpus: tuple[list[Judged], float, float]) -> None:
    judged, cost_s, paces = corpus
    assert len(judged) >= 115
    assert cost_s < ENOUGH_S or paces < ENOUGH_PACES, f"{cost_s:.0f} s, {paces:.0f} paces"


def test_nobody_is_accused_who_is_innocent(corpus: tuple[list[Judged], float, float]) -> None:
    healthy = [answer.said for case, answer in corpus[0] if case.truth.status == "healthy" and answer.accused]
    assert healthy == []


def test_a_slow_actor_whose_learner_works_after_it_is_not_called_healthy(
    corpus: tuple[list[Judged], float, float],
) -> None:
    said = {case.key: answer.said for case, answer in corpus[0] if "learner-actors-slow-" in case.key}
    assert said and not [key for key, each in said.items() if each.startswith("healthy")]
