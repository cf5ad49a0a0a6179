"""What the lab runs: enough kinds of fault, cases that do not depend on each other, jobs that serve several."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from labkit.cases import CPU, Case, plan_of, random_of, schedule
from labkit.cli import faults_named
from labkit.faults import ALL, CLASSIC
from labkit.launch import Plan
from labkit.machine.shell import EXIT_USAGE, LabError

SEEDS = range(1, 8)


def every_case() -> list[Case]:
    return [Case(fault, seed, dose=dose) for seed in SEEDS for fault in ALL for dose in ("strong", "weak")]


def test_there_are_30_kinds_of_fault_five_pairs_and_three_kinds_of_healthy_run() -> None:
    groups = [kind.group for kind in ALL.values()]
    assert len(groups) - groups.count("healthy") - groups.count("pairs") == 30
    assert groups.count("pairs") == 5
    assert groups.count("healthy") == 3
    assert all(ALL[name].name == name for name in ALL)
    assert "other" not in groups


def test_every_plan_can_be_started() -> None:
    for case in every_case():
        plan = plan_of(case)
        assert ALL[case.fault].min_ranks <= plan.ranks <= 8
        assert 1 <= plan.hosts <= min(4, plan.ranks)
        assert plan.hosts >= ALL[case.fault].min_hosts
        assert 0 <= plan.lone < plan.ranks
        assert plan.ranks % plan.stages == 0
        assert "--crops" in plan.job_arguments


def test_sizes_and_ranks_vary_with_the_seed_and_repeat_with_it() -> None:
    plans = {plan_of(Case("python-slow", seed)) for seed in range(1, 30)}
    assert {plan.ranks for plan in plans} == {2, 3, 4, 6, 8}
    assert len({plan.lone for plan in plans}) >= 4
    for case in every_case()[:20]:
        assert plan_of(case) == plan_of(case)
        assert random_of(case).random() == random_of(case).random()
    assert random_of(Case("none", 1)).random() != random_of(Case("none", 1, dose="weak")).random()


def test_a_job_serves_only_cases_that_need_the_same_job() -> None:
    cases = every_case()
    chunks = schedule(cases, CPU)
    assert sorted(case.key for chunk in chunks for case in chunk) == sorted(case.key for case in cases)
    assert len(chunks) < len(cases) / 2
    for chunk in chunks:
        assert len(chunk) <= CPU.cases_per_job
        assert len({(case.seed, replace(plan_of(case), lone=0)) for case in chunk}) == 1
        assert not any(ALL[case.fault].spoils for case in chunk[:-1])


def test_a_lab_without_sharing_starts_a_job_per_case() -> None:
    alone = replace(CPU, cases_per_job=1)
    assert [len(chunk) for chunk in schedule([Case("none", 1), Case("stopped", 1)], alone)] == [1, 1]


def test_faults_are_chosen_by_name_and_by_group() -> None:
    assert faults_named("all", ALL) == list(ALL)
    assert set(faults_named("classic", ALL)) == set(CLASSIC)
    assert set(faults_named("network,none", ALL)) == {"slow-link", "packet-loss", "slow-fabric", "cut-off", "none"}
    with pytest.raises(LabError) as refused:
        faults_named("python-slow,no-such", ALL)
    assert "no-such" in str(refused.value)
    assert refused.value.exit_code == EXIT_USAGE


def test_the_job_gets_no_feature_that_no_fault_asked_for() -> None:
    words = Plan(ranks=4, hosts=2, lone=0).job_arguments
    parsed = argparse.ArgumentParser()
    for name in ("workers", "report-bytes", "lookups", "save-every"):
        parsed.add_argument(f"--{name}", type=int)
    assert set(vars(parsed.parse_known_args(words)[0]).values()) == {0}
