"""Windows that the labs recorded are judged as well as they ever were: which culprit, and nobody who is innocent."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from corpuskit import files, tables
from corpuskit.archive import archives, opened
from corpuskit.judging import judges
from corpuskit.tables import Judged

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def corpus() -> Iterator[tuple[list[Judged], float]]:
    """Every case with its answer, and how long it took to judge them."""
    with opened(archives()) as unpacked:
        began = time.monotonic()
        with judges(unpacked, os.cpu_count() or 1) as judge:
            judged = list(zip(unpacked.cases, judge(unpacked.cases), strict=True))
        yield judged, time.monotonic() - began


def test_no_kind_is_judged_worse_than_the_table_says(corpus: tuple[list[Judged], float]) -> None:
    assert list(files.fallen(corpus[0])) == [], "\n".join(tables.bad_table(corpus[0]))


def test_the_whole_corpus_is_judged_in_two_minutes(corpus: tuple[list[Judged], float]) -> None:
    judged, seconds = corpus
    assert len(judged) >= 115
    assert seconds < PATIENCE_S


def test_nobody_is_accused_who_is_innocent(corpus: tuple[list[Judged], float]) -> None:
    healthy = [answer.said for case, answer in corpus[0] if case.truth.status == "healthy" and answer.accused]
    assert healthy == []


def test_a_slow_actor_whose_learner_works_after_it_is_not_called_healthy(corpus: tuple[list[Judged], float]) -> None:
    said = {case.key: answer.said for case, answer in corpus[0] if "learner-actors-slow-" in case.key}
    assert said and not [key for key, each in said.items() if each.startswith("healthy")]
