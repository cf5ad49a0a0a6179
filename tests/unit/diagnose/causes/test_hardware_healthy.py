"""Healthy GPU jobs: counters that wander as those of healthy machines do accuse nobody."""

from __future__ import annotations

import numpy as np
import pytest
from builders import columns, said
from hardware_builders import CLOCK_HZ, NIC_HZ, NVLINK_HZ, Machine, named

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window


def wandering(seed: int, ranks: int) -> Machine:
    """Counters of a healthy but motley fleet: some bits set, some errors, boost clocks and rates that differ, a bad sample."""
    rng = np.random.default_rng(seed)
    counters: dict[tuple[int, str], float] = {}
    for rank in range(ranks):
        counters[rank, "gpu.sm_clock_hz"] = float(CLOCK_HZ * rng.uniform(0.93, 0.99))
        counters[rank, "gpu.throttle.power_cap_s"] = float(rng.uniform(0, 12))
        counters[rank, "gpu.throttle.sw_thermal_s"] = float(rng.exponential(0.3))
        counters[rank, "gpu.temperature_c"] = float(rng.uniform(55, 82))
        counters[rank, "gpu.ecc_corrected"] = float(rng.poisson(1))
        counters[rank, "nic.burst_hz"] = float(NIC_HZ * 0.7 * np.exp(rng.normal(0, 0.12)))
        counters[rank, "nvlink.burst_hz"] = float(NVLINK_HZ * 0.7 * np.exp(rng.normal(0, 0.12)))
        counters[rank, "nic.symbol_errors"] = float(rng.poisson(2))
        counters[rank, "nic.cnp"] = float(rng.exponential(300))
        counters[rank, "nic.retransmits"] = float(rng.exponential(15))
        counters[rank, "pcie.replays"] = float(rng.poisson(2))
    return Machine(ranks=ranks, seed=seed, noise=0.06, transfer=float(rng.uniform(1, 4)), counters=counters)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("seed", range(50))
def test_nobody_is_accused_for_counters_that_wander(seed: int, ranks: int) -> None:
    verdict = wandering(seed, ranks).verdict()
    assert (verdict.status, verdict.suspects) == ("healthy", ()), named(verdict)


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_accused_in_a_larger_fleet(seed: int) -> None:
    verdict = wandering(seed, 97).verdict()
    assert (verdict.status, verdict.suspects) == ("healthy", ()), named(verdict)


@pytest.mark.parametrize("seed", range(5))
def test_half_the_counters_missing_accuses_nobody(seed: int) -> None:
    machine = wandering(seed, 8)
    rng = np.random.default_rng(seed)
    for key in list(machine.counters):
        if rng.random() < 0.5:
            machine.counters[key] = float("nan")
    assert not machine.verdict().suspects


def one_host_unseen(machine: Machine) -> list[Window]:
    """The second host has no NVML: its ranks wait for their GPUs in a call, half of which is not seen as their own time."""
    seen, unseen = machine.windows()
    steps = [row | {"own_s": row["own_s"] - 0.12, "wait_s": row["wait_s"] + 0.12} for row in unseen.steps.to_pylist()]
    kinds = {"gpu": {"kind": "python", "name": "synchronize", "per_step_s": 0.08}}
    patterns = [row | kinds.get(row["kind"], {}) for row in unseen.patterns.to_pylist()]
    return [seen, columns(columns(unseen, "steps", steps), "patterns", patterns)]


@pytest.mark.parametrize("seed", range(3))
def test_a_host_whose_gpus_are_not_seen_is_not_compared_with_those_that_are(seed: int) -> None:
    verdict = diagnose(one_host_unseen(Machine(ranks=16, seed=seed)))
    assert (verdict.status, verdict.suspects) == ("healthy", ()), named(verdict)
    assert "ranks 8-15" in said(verdict, NoteCode.RANKS_BLIND), verdict.notes


def test_a_slow_gpu_beside_such_a_host_is_named() -> None:
    counters = {(3, "gpu.sm_clock_hz"): 0.5 * CLOCK_HZ, (3, "gpu.throttle.hw_thermal_s"): 19.0}
    verdict = diagnose(one_host_unseen(Machine(ranks=16, kernels={3: 1.9}, counters=counters)))
    assert named(verdict) == [("gpu", "throttled-thermal", "gpu3", (3,))]
