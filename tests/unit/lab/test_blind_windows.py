"""Recorded windows with each source knocked out in turn: nothing is said that rests on what was missing."""

from __future__ import annotations

from itertools import cycle

import pytest

from corpuskit import blind
from corpuskit.archive import HOME, SUFFIX, opened
from rankscope.observer.sources import ESSENTIAL, Source
from rankscope.observer.window.folder import read_window

ARCHIVES = ("lab-142", "programs-8", "jobs-42", "h100-1", "h100-3")  # faults of labs, jobs of many frameworks, GPUs
WINDOWS = 200


@pytest.fixture(scope="module")
def counted() -> dict[Source, blind.Counted]:
    """Judge each case without one source, the sources in turn."""
    found = {source: blind.Counted() for source in Source}
    with opened([HOME / f"{name}{SUFFIX}" for name in ARCHIVES]) as corpus:
        for case, source in zip(corpus.cases, cycle(Source), strict=False):
            windows = [read_window(place) for place in corpus.windows(case)]
            baseline = [read_window(place) for place in corpus.baseline(case)]
            found[source].add(case.key, source, blind.judge_without(windows, baseline, source))
    return found


def test_nothing_that_rests_on_a_missing_source_is_said(counted: dict[Source, blind.Counted]) -> None:
    assert sum(one.windows for one in counted.values()) >= WINDOWS
    assert [line for one in counted.values() for line in one.wrong] == []
    assert {source for source, one in counted.items() if one.statuses["healthy"]} == set()


def test_without_an_essential_source_all_are_unknown_and_without_others_some_are_judged(
    counted: dict[Source, blind.Counted],
) -> None:
    for source, one in counted.items():
        assert one.windows >= WINDOWS // len(Source)
        judged = one.windows - one.statuses["unknown"]
        assert judged == 0 if source in ESSENTIAL else judged > 0, source
