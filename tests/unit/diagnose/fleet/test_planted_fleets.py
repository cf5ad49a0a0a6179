"""Culprits of every scope in fleets that lie in a store: each is named whole, and nobody else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored import send

from benchkit.fleet import FLEETS, is_named
from benchkit.fleet_windows import Plan, groups, plan, window_of
from rankscope.diagnose.infer.fleet.large import stand_out
from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.diagnose.infer.fleet.sources import find
from rankscope.diagnose.infer.solve import large_fleet
from rankscope.diagnose.infer.solve.judge import judge
from rankscope.diagnose.infer.solve.large_fleet import diagnose_large
from rankscope.diagnose.infer.verdict.contract import Verdict

HOSTS = 48


def written(culprits: Mapping[str, int], place: Path, seed: int = 1) -> Plan:
    fleet = plan(HOSTS, 0.05, seed, culprits)
    for host in range(HOSTS):
        send(place.as_uri(), window_of(fleet, host, 0, HOSTS))
    return fleet


def judged(place: Path, baseline: Path | None = None, shared: Sequence[Group] = groups(HOSTS)) -> Verdict:
    before = find([baseline]).chosen if baseline is not None else ()
    with ThreadPoolExecutor(1) as pool:
        [(_, verdict)] = diagnose_large(find([place]), None, pool, shared, before)
    return verdict


@pytest.fixture(autouse=True)
def few_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of thousands of hosts: 12 of them are the sample."""
    monkeypatch.setattr(stand_out, "_SAMPLE_HOSTS", 12)


def accused(verdict: Verdict) -> set[int]:
    return {rank for suspect in verdict.suspects for rank in suspect.ranks}


def test_culprits_of_six_scopes_are_named_at_once(tmp_path: Path) -> None:
    fleet = written({**FLEETS["mixed"], "rank": 2}, tmp_path)
    verdict = judged(tmp_path)
    missed = [each for each in fleet.planted if not is_named(each, verdict.suspects)]
    assert not missed, [(suspect.scope, suspect.component, suspect.ranks) for suspect in verdict.suspects]
    assert accused(verdict) == {rank for each in fleet.planted for rank in each.ranks}


def test_a_rail_is_named_though_only_a_part_of_its_adapters_is_looked_at(tmp_path: Path) -> None:
    fleet = written(FLEETS["rail"], tmp_path)
    verdict = judged(tmp_path)
    assert is_named(fleet.planted[0], verdict.suspects)
    assert accused(verdict) <= set(fleet.planted[0].ranks)


def test_a_switch_that_nobody_named_is_proposed_by_its_hosts(tmp_path: Path) -> None:
    fleet = written({"switch": 1}, tmp_path)
    [one] = judged(tmp_path, shared=()).suspects
    assert (one.scope, one.component, one.ranks) == ("group", "network", fleet.planted[0].ranks)


def test_a_fleet_in_which_all_became_slow_is_told_from_its_past(tmp_path: Path) -> None:
    fleet = written(FLEETS["all"], tmp_path / "now")
    written({}, tmp_path / "before")
    verdict = judged(tmp_path / "now", tmp_path / "before")
    assert is_named(fleet.planted[0], verdict.suspects)
    assert not judged(tmp_path / "now").suspects


def test_a_healthy_fleet_names_nobody(tmp_path: Path) -> None:
    written({}, tmp_path)
    assert not judged(tmp_path).suspects


def test_what_alone_is_too_little_among_so_many_belongs_to_its_host_and_rack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among a million ranks who is as slow as its neighbours, just not as clearly, is named with them."""
    fleet = written({"rack": 1, "host": 1}, tmp_path)
    monkeypatch.setattr(large_fleet, "judge", lambda part, past: judge(replace(part, looked_at=10**7), past))
    assert accused(judged(tmp_path)) == {rank for each in fleet.planted for rank in each.ranks}


def test_a_group_is_planted_as_a_whole() -> None:
    fleet = plan(HOSTS, 0.05, 1, FLEETS["mixed"] | {"rank": 2})
    sizes = {each.scope: len(each.ranks) for each in fleet.planted}
    assert sizes == {"rank": 1, "host": 8, "rack": 24, "filesystem": 24, "link": 1, "switch": 24}
    assert (np.flatnonzero(fleet.rate < 1).size, fleet.hosts) == (25, HOSTS)
