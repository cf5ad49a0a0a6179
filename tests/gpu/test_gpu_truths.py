"""What counts as right in the GPU lab: component, ranks, part and cause; and that every fault is undone by its revert."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from labkit import verdicts
from labkit.faults.base import Truth
from labkit.gpu.faults import ALL
from labkit.gpu.faults.base import GpuFault
from labkit.gpu.launch import RANKS, GpuJob, GpuPlan
from labkit.gpu.sim.sim import Machine
from labkit.step_times import Pace

HEALTHY = Pace(steps=11, step_s=0.6, own_s=(0.5,) * RANKS, cpu_s=(0.01,) * RANKS)
# Those that need processes.
WITH_PROCESSES = {"gpu-shared", "gpu-xid-fatal", "gpu-lost"}
SETTINGS = sorted(name for name, kind in ALL.items() if issubclass(kind, GpuFault) and name not in WITH_PROCESSES)
LOOKED_AT = (
    "clock_hz", "clock_limit_hz", "throttle_reasons", "power_cap_w", "temperature_c", "speed", "ecc_corrected_hz", "nvlink_active",
    "nvlink_error_hz", "nvlink_rate_factor", "pcie_gen", "pcie_width", "pcie_replay_hz", "pcie_rate_factor",
)  # fmt: skip
LOOKED_AT_NIC = (
    "rate_factor",
    "speed_hz",
    "width",
    "flapping_hz",
    "symbol_error_hz",
    "crc_error_hz",
    "link_rate_factor",
)


def outcome(truth: Truth, **suspect: Any) -> str:
    """How a verdict with one suspect is scored."""
    whole = {
        "component": "gpu",
        "cause": "slow",
        "ranks": [2],
        "host": "a",
        "instance": "gpu2",
        "function": None,
    } | suspect
    text = json.dumps({"schema": "rankscope.verdict/1", "status": "fault", "suspects": [whole]})
    return verdicts.score(verdicts.parse(text), truth)


def test_part_and_cause_must_be_right_as_well() -> None:
    truth = Truth("fault", {"gpu": frozenset({"slow"})}, (2,), instances=frozenset({"gpu2"}), exact=True)
    assert outcome(truth) == verdicts.FIRST
    assert outcome(truth, instance="gpu2 by eval-server (4711)") == verdicts.FIRST
    assert outcome(truth, instance="gpu23") == verdicts.WRONG
    assert outcome(truth, instance="") == verdicts.WRONG
    assert outcome(truth, cause="clock-low") == verdicts.WRONG
    assert outcome(truth, ranks=[3]) == verdicts.WRONG


def test_either_end_of_a_slow_link_is_right() -> None:
    ends = frozenset({"mlx5_1", "mlx5_5"})
    truth = Truth("fault", {"network": frozenset({"slow-link"})}, (1, 5), whole_host=True, instances=ends, exact=True)
    link = {"component": "network", "cause": "slow-link"}
    assert outcome(truth, **link, ranks=[5], instance="mlx5_5") == verdicts.FIRST
    assert outcome(truth, **link, ranks=[1, 5], instance="mlx5_1/1") == verdicts.FIRST
    assert outcome(truth, **link, ranks=[0], instance="mlx5_1") == verdicts.WRONG


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine"), gpus=RANKS, per_host=4) as running:
        yield running


def settings_of(machine: Machine) -> list[float]:
    gpus = [machine.gpu(index).get(name) for index in range(RANKS) for name in LOOKED_AT]
    return gpus + [machine.nic(index).get(name) for index in range(RANKS) for name in LOOKED_AT_NIC]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fault_changes_the_machine_and_is_undone(name: str, seed: int, machine: Machine) -> None:
    job = GpuJob(GpuPlan(ranks=RANKS, hosts=2, lone=0), seed)
    job.machine = machine  # no ranks on it: a lab may be running on this host
    before = settings_of(machine)
    fault = ALL[name](job, random.Random(seed), "strong", HEALTHY)
    truth = fault.inject()
    during = settings_of(machine)
    fault.revert()
    assert during != before
    assert settings_of(machine) == before
    if truth.status != "healthy":
        assert fault.victim in truth.ranks
        assert truth.exact
        assert truth.instances
