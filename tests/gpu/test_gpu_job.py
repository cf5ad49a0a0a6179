"""The job of the GPU lab: it trains, is found from outside, suffers from faults as physics says, and goes without a trace."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import RANKSCOPE

from labkit.gpu.faults import ALL
from labkit.gpu.launch import JOB_SCRIPT, MACHINE, RANKS, GpuJob, GpuPlan
from labkit.gpu.step_times import GpuPace
from labkit.machine import cgroups, disk, guard, hosts

pytestmark = pytest.mark.beside

REPOSITORY = Path(__file__).resolve().parents[2]

PLAN = GpuPlan(ranks=RANKS, hosts=2, lone=0)
HEALTHY_S = 5.0
FAULT_S = 5.0


@pytest.fixture(scope="module")
def job() -> Iterator[GpuJob]:
    running = GpuJob(PLAN, seed=7)
    with guard.lab_to_oneself(), running:
        running.wait_until_healthy()
        yield running


@pytest.fixture(scope="module")
def healthy(job: GpuJob) -> GpuPace:
    return pace_of(job, HEALTHY_S)


def pace_of(job: GpuJob, seconds: float) -> GpuPace:
    began = time.monotonic()
    time.sleep(seconds)
    pace = job.pace(began, time.monotonic())
    assert pace is not None, "no step ended"
    return pace


@contextlib.contextmanager
def suffering(job: GpuJob, healthy: GpuPace, name: str, seed: int = 3) -> Iterator[tuple[int, float, GpuPace]]:
    """(victim, what is left of its speed, the pace) under a fault."""
    fault = ALL[name](job, random.Random(seed), "strong", healthy)
    fault.inject()
    try:
        time.sleep(1.5)
        yield fault.victim, getattr(fault, "share", 0.0), pace_of(job, FAULT_S)
    finally:
        fault.revert()


def others(figures: tuple[float, ...], victim: int) -> float:
    return max(figure for rank, figure in enumerate(figures) if rank != victim)


def test_nothing_is_left_behind() -> None:
    """First, with a job of its own that is stopped by an error: the others share one, which lives as long as they do."""
    with guard.lab_to_oneself(), pytest.raises(KeyboardInterrupt), GpuJob(PLAN, seed=8) as job:
        job.wait_until_healthy()
        pids = [*(process.pid for process in job.processes), job.machine.daemon_pid]
        assert len(pids) == RANKS + 1
        raise KeyboardInterrupt
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not list(hosts.NETNS_FOLDER.glob(f"{hosts.PREFIX}-*"))
    assert not [path for one in cgroups.hierarchies() for path in one.mount.glob(f"{cgroups.PREFIX}*")]
    assert not disk.FOLDER.exists()
    assert not MACHINE.exists()


def test_it_steps_and_leaves_the_cpu_to_others(healthy: GpuPace) -> None:
    assert 0.45 < healthy.step_s < 0.9
    assert all(0.5 < compute / healthy.step_s < 0.8 for compute in healthy.compute_s)
    assert max(healthy.compute_s) < 1.05 * min(healthy.compute_s)
    assert sum(healthy.cpu_s) / healthy.step_s < 0.8


def test_its_ranks_are_found_from_outside(job: GpuJob, healthy: GpuPace) -> None:
    command = [str(RANKSCOPE), "ranks", "--json"]
    done = subprocess.run(job.observer_command(command), capture_output=True, text=True, timeout=60, check=True)
    pids = [process.pid for process in job.processes]
    found = [rank for rank in json.loads(done.stdout)["ranks"] if rank["pid"] in pids]
    assert [(rank["rank"], rank["pid"]) for rank in found] == list(enumerate(pids))
    assert all(JOB_SCRIPT.name in rank["command"] for rank in found)
    assert len({rank["job"] for rank in found}) == 1
    assert {rank["node"] for rank in found} == {host.node for host in job.hosts}
    assert {(rank["local_rank"], rank["world_size"]) for rank in found} == {(local, RANKS) for local in range(4)}


def test_a_throttled_gpu_computes_longer_and_the_others_wait(job: GpuJob, healthy: GpuPace) -> None:
    with suffering(job, healthy, "gpu-thermal") as (victim, share, pace):
        assert pace.compute_s[victim] == pytest.approx(healthy.compute_s[victim] / share, rel=0.1)
        assert others(pace.compute_s, victim) < 1.1 * others(healthy.compute_s, victim)
        assert others(pace.exchange_s, victim) > pace.exchange_s[victim] + 0.1
        assert pace.step_s > healthy.step_s + 0.1


def test_a_slow_nic_lengthens_the_exchange_of_all(job: GpuJob, healthy: GpuPace) -> None:
    with suffering(job, healthy, "nic-speed") as (_, _, pace):
        assert min(pace.exchange_s) > max(healthy.exchange_s) + 0.1
        assert max(pace.compute_s) < 1.1 * max(healthy.compute_s)


def test_a_narrow_pcie_link_lengthens_copies_of_one_rank(job: GpuJob, healthy: GpuPace) -> None:
    with suffering(job, healthy, "pcie-width") as (victim, _, pace):
        # A busy host adds milliseconds between the event before a copy and the copy itself.
        assert pace.copy_s[victim] > 1.5 * healthy.copy_s[victim]
        assert pace.copy_s[victim] > 1.3 * others(pace.copy_s, victim)


def test_a_slow_python_function_is_the_rank_s_own_time(job: GpuJob, healthy: GpuPace) -> None:
    with suffering(job, healthy, "python-slow") as (victim, _, pace):
        assert pace.step_s > healthy.step_s + 0.1
        assert pace.own_s[victim] > others(pace.own_s, victim) + 0.1
