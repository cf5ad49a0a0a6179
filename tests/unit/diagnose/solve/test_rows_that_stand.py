"""Rows are admitted by their score, and stand by what each gains beside the others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from builders import Job, build

from rankscope.diagnose.infer.causes.hypothesis import Hypothesis
from rankscope.diagnose.infer.causes.rank.selection import Admitted
from rankscope.diagnose.infer.causes.rows import Clear, OfRank, Row, Taken, gain_s, of_ranks, standing
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.solve.prepare import prepare
from rankscope.diagnose.stats.robust import nan_median


@pytest.fixture(scope="module")
def scene() -> Scene:
    fleet = gather(build(Job(ranks=4, steps=60)))
    return prepare(fleet, nan_median(fleet.steps.seconds, 0))[0]


def row(scene: Scene, ranks: tuple[int, ...], seconds: float, z: float = 20.0, support: float = 0.95) -> Row:
    removes = np.full((len(ranks), scene.own.shape[1]), seconds)
    found = Hypothesis("cpu", "contended", ranks, float("nan"), support, (), "", scope="host")
    return Row(found, of_ranks(ranks, removes), Clear(z))


def test_two_that_slow_alike_stand_together_and_share_the_gain(scene: Scene) -> None:
    halves = [row(scene, (0, 1), 0.05), row(scene, (2, 3), 0.05)]
    assert standing(scene, halves[:1]) == []  # the others are as late
    found = standing(scene, halves)
    assert sorted(each.found.rows for each in found) == [(0, 1), (2, 3)]
    assert sum(each.found.lost_s for each in found) == pytest.approx(gain_s(scene, halves))


def test_who_the_rest_explains_does_not_stand(scene: Scene) -> None:
    everybody, one = row(scene, (0, 1, 2, 3), 0.05), row(scene, (2,), 0.05)
    assert [each.found.rows for each in standing(scene, [one, everybody])] == [(0, 1, 2, 3)]


@pytest.mark.parametrize(("z", "support"), [(2.5, 0.95), (20.0, 1e-90), (0.0, 1.0)])
def test_what_may_be_chance_or_has_no_witness_is_not_admitted(scene: Scene, z: float, support: float) -> None:
    assert standing(scene, [row(scene, (0, 1, 2, 3), 0.05, z, support)]) == []


def test_what_the_step_loses_elsewhere_adds_to_what_ranks_lose(scene: Scene) -> None:
    link = Row(
        Hypothesis("network", "slow-link", (1,), float("nan"), 0.95, (), "", scope="link"),
        Taken(0.04),
        Clear(9.0),
    )
    found = standing(scene, [link, row(scene, (0, 1, 2, 3), 0.05)])
    assert sorted(round(each.found.lost_s, 2) for each in found) == [0.04, 0.05]


def test_of_one_mechanism_on_a_rank_and_on_its_host_the_narrower_stands(scene: Scene) -> None:
    host = row(scene, (0, 1, 2, 3), 0.05)
    one = replace(row(scene, (2,), 0.05), found=replace(host.found, rows=(2,), scope="rank"))
    slow = replace(scene, own=scene.own + np.array([0.0, 0.0, 0.05, 0.0])[:, None])
    assert [each.found.rows for each in standing(slow, [host, one])] == [(2,)]
    other = replace(one, found=replace(one.found, cause="affinity"))
    assert sorted(each.found.rows for each in standing(slow, [host, other])) == [(0, 1, 2, 3), (2,)]


def test_a_slow_rank_that_another_row_hides_stands_with_it(scene: Scene) -> None:
    own = scene.own + np.array([0.06, 0.06, 0.05, 0.0])[:, None]  # a heavy stage of two ranks, and a slow one
    heavy, slow = row(scene, (0, 1), 0.06), row(scene, (2,), 0.05)
    hidden = replace(scene, own=own)
    assert standing(hidden, [slow]) == []
    assert len(standing(hidden, [heavy, slow])) == 2


def test_who_is_slow_in_all_steps_of_many_ranks_stands_though_no_step_is_shorter(scene: Scene) -> None:
    own = scene.own.copy()
    own[1, ::2] += 0.2  # accidents of others
    own[2, 1::2] += 0.2
    stalled = replace(scene, own=own)
    slow = row(scene, (3,), 0.05)
    assert standing(stalled, [slow]) == []
    admitted = cast(Admitted, SimpleNamespace(score=20.0))
    lasting = replace(slow, rank=OfRank(admitted, lasting=True))
    assert [each.found.rows for each in standing(stalled, [lasting])] == [(3,)]
    everybody = row(scene, (0, 1, 2, 3), 0.06)
    single = replace(lasting, found=replace(lasting.found, scope="rank"))
    assert [each.found.rows for each in standing(stalled, [single, everybody])] == [(0, 1, 2, 3)]  # the same seconds
