"""Windows that the labs recorded are judged as well as they ever were: which culprit, and nobody who is innocent."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pace import pace_s

from corpuskit import files, tables
from corpuskit.archive import archives, opened
from corpuskit.judging import judges
from corpuskit.tables import Judged

# Two minutes on both of two usual cores, all processes together.
ENOUGH_PACES = 1200


@pytest.fixture(scope="module")
def corpus() -> Iterator[tuple[list[Judged], float]]:
    """Every case with its answer, and what it cost to judge them, in paces of this machine."""
    with opened(archives()) as unpacked:
        began = children_s()
        with judges(unpacked, os.cpu_count() or 1) as judge, paces_meanwhile() as paces:
            judged = list(zip(unpacked.cases, judge(unpacked.cases), strict=True))
        yield judged, (children_s() - began) / statistics.fmean(paces)


@contextmanager
def paces_meanwhile() -> Iterator[list[float]]:
    """What a pace takes, time and again: before and after the minute others may share the cores, or not, as they did not within it."""
    paces, ended = [pace_s()], threading.Event()

    def look() -> None:
        while not ended.wait(1.0):
            paces.append(pace_s())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield paces
    finally:
        ended.set()
        looking.join()


def children_s() -> float:
    """CPU seconds of processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def test_no_kind_is_judged_worse_than_the_table_says(corpus: tuple[list[Judged], float]) -> None:
    assert list(files.fallen(corpus[0])) == [], "\n".join(tables.bad_table(corpus[0]))


def test_the_whole_corpus_is_judged_in_two_minutes(corpus: tuple[list[Judged], float]) -> None:
    judged, paces = corpus
    assert len(judged) >= 115
    assert paces < ENOUGH_PACES, f"{paces:.0f} paces"


def test_nobody_is_accused_who_is_innocent(corpus: tuple[list[Judged], float]) -> None:
    healthy = [answer.said for case, answer in corpus[0] if case.truth.status == "healthy" and answer.accused]
    assert healthy == []


def test_a_slow_actor_whose_learner_works_after_it_is_not_called_healthy(corpus: tuple[list[Judged], float]) -> None:
    said = {case.key: answer.said for case, answer in corpus[0] if "learner-actors-slow-" in case.key}
    assert said and not [key for key, each in said.items() if each.startswith("healthy")]
