"""Every cause comes through one door: whatever the order of asking, and whether others propose or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from builders import BUSY, Job, build

from rankscope.diagnose.infer.causes import registry, whole_job
from rankscope.diagnose.infer.causes.link.suspects import slow_links
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.solve.judge import judge

SLOW_RANK = Job(ranks=8, namespaces=4, extra={3: [(BUSY, 0.08)]})
SLOW_LINK = Job(ranks=8, namespaces=4, slow_links={"198.18.0.11": 0.1})
BOTH = Job(ranks=8, namespaces=4, extra={5: [(BUSY, 0.08)]}, slow_links={"198.18.0.11": 0.1})


def asked(monkeypatch: pytest.MonkeyPatch, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    monkeypatch.setattr(whole_job, "proposers", lambda *given: change(registry.proposers(*given)))


@pytest.mark.parametrize("job", [SLOW_RANK, SLOW_LINK, BOTH], ids=["rank", "link", "both"])
def test_the_order_of_asking_changes_no_verdict(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = gather(build(job))
    verdict = judge(fleet)
    assert verdict.suspects
    asked(monkeypatch, lambda functions: functions[::-1])
    assert judge(fleet).suspects == verdict.suspects


def test_slow_ranks_are_named_though_no_link_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, lambda functions: tuple(one for one in functions if one is not slow_links))
    assert [one.ranks for one in judge(gather(build(SLOW_RANK))).suspects] == [(3,)]
    assert judge(gather(build(SLOW_LINK))).status == "healthy"


def test_a_slow_rank_and_a_slow_link_are_both_named() -> None:
    assert {(one.component, one.scope) for one in judge(gather(build(BOTH))).suspects} == {
        ("python", "rank"),
        ("network", "link"),
    }
