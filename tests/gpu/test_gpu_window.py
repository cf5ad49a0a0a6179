"""A real window of a real job on the emulated GPU machine: shares, steps and owners agree with the job's own account."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from plain_gpu_job import PlainJob

from labkit.gpu.sim.sim import CACHE, build
from rankscope.observer.window.folder import Window

pytestmark = pytest.mark.apart

RANKS = 7
# Sized for seven ranks that share two CPUs with everything else: steps of about 0.6 s.
ARGUMENTS = ("--compute-ms", "290", "--gradient-mb", "2300", "--batch-mb", "2200")
WINDOW_S = 10.0
SLOW_GPU, SLOW_PYTHON = 2, 5


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainJob]:
    build(CACHE)
    with PlainJob(tmp_path_factory.mktemp("gpu-window"), RANKS, ARGUMENTS) as running:
        yield running


def by_rank(window: Window, column: str) -> list[float]:
    table = window.steps
    ranks, values = table.column("rank").to_numpy(), table.column(column).to_numpy()
    return [float(np.mean(values[ranks == rank])) for rank in range(RANKS)]


def counter(window: Window, name: str, instance: str = "") -> dict[int, float]:
    return {
        row["rank"]: row["value"]
        for row in window.counters.to_pylist()
        if row["name"] == name and instance in ("", row["instance"])
    }


def per_step(window: Window, rank: int, kind: str, name: str = "") -> float:
    return sum(
        row["per_step_s"] or 0.0
        for row in window.patterns.to_pylist()
        if row["rank"] == rank and row["kind"] == kind and row["thread"] == "training" and name in ("", row["name"])
    )


def test_a_healthy_job_has_its_devices_and_its_shares(job: PlainJob) -> None:
    window, truths = job.window(WINDOW_S)
    notes = " / ".join(window.manifest.notes)
    for row in window.ranks.to_pylist():
        assert row["gpus"] == [f"gpu{row['rank']}"], notes
        assert f"mlx5_{row['rank']}" in row["nics"], notes
    seconds, own = by_rank(window, "seconds"), by_rank(window, "own_s")
    for rank in range(RANKS):
        assert seconds[rank] == pytest.approx(truths[rank]["seconds"], rel=0.1), notes
        assert own[rank] == pytest.approx(truths[rank]["own"], rel=0.15), notes
        assert per_step(window, rank, "gpu", "kernels") == pytest.approx(truths[rank]["compute"], rel=0.15)
        assert per_step(window, rank, "memory") == pytest.approx(truths[rank]["copy"], rel=0.5)
    assert max(own) - min(own) < 0.05 * np.median(seconds)
    assert len(counter(window, "gpu.sm_clock_hz")) == RANKS
    assert counter(window, "gpu.throttle.hw_thermal_s") == dict.fromkeys(range(RANKS), 0.0)
    assert set(counter(window, "nic.collective_mu")) == set(range(RANKS)), notes
    launched = counter(window, "nccl.launched")
    assert all(launched[rank] == pytest.approx(5 * WINDOW_S / seconds[rank], rel=0.15) for rank in range(RANKS))
    assert counter(window, "gpu.wait_s")[0] > 0
    check_kernels(window)


def check_kernels(window: Window) -> None:
    """A step launches 48 of attention and of mlp each, from one place, and 4 of adam; the library has no symbols."""
    rows = window.patterns.to_pylist()
    for rank in range(RANKS):
        on_gpu = [row for row in rows if row["rank"] == rank and row["thread"] == "gpu"]
        (waits,) = [row for row in on_gpu if row["kind"] == "sync"]  # for the loss, once a step
        assert (waits["name"], waits["caller"]) == ("cudaStreamSynchronize", "Stream.synchronize")
        assert waits["count"] == pytest.approx(WINDOW_S / by_rank(window, "seconds")[rank], abs=2)
        mine = {row["name"]: row for row in on_gpu if row["kind"] == "gpu"}
        assert set(mine) - {"model::adam"} == {"model::attention<64, float>", "model::mlp<Gelu>"}
        attention, mlp = mine["model::attention<64, float>"], mine["model::mlp<Gelu>"]
        assert attention["count"] > 20 and attention["count"] == pytest.approx(mlp["count"], rel=0.6)
        assert {(row["caller"], row["file"].rpartition("/")[2], row["detail"]) for row in mine.values()} == {
            ("Kernel.launch", "cuda.py", "by launches")
        }
        whole = per_step(window, rank, "gpu", "kernels")
        assert sum(row["per_step_s"] for row in mine.values()) == pytest.approx(whole, rel=1e-3)
        assert attention["mu"] == pytest.approx(mlp["mu"]) and 0.3 < attention["mu"] <= 1


def hurt(job: PlainJob, rank: int) -> tuple[Window, float]:
    """A window in which a rank is slow, and by how much; it works as much longer as the job says, and waits least."""
    try:
        time.sleep(1.5)
        window, truths = job.window(WINDOW_S)
    finally:
        job.heal()
    own, wait = by_rank(window, "own_s"), by_rank(window, "wait_s")
    excess = truths[rank]["own"] - float(np.median([one["own"] for one in truths]))
    assert own[rank] - float(np.median(own)) == pytest.approx(excess, rel=0.25)
    assert int(np.argmin(wait)) == rank
    return window, excess


def test_a_slow_gpu_computes_longer_and_the_others_wait(job: PlainJob) -> None:
    job.machine.gpu(SLOW_GPU).set(speed=0.7)
    window, _ = hurt(job, SLOW_GPU)
    kernels = [per_step(window, rank, "gpu", "kernels") for rank in range(RANKS)]
    assert int(np.argmax(kernels)) == SLOW_GPU


def test_slow_python_is_its_functions_time_with_an_idle_gpu(job: PlainJob) -> None:
    job.slow_python(SLOW_PYTHON, 0.15)
    window, excess = hurt(job, SLOW_PYTHON)
    prepare = [per_step(window, rank, "python", "Batches.prepare") for rank in range(RANKS)]
    assert int(np.argmax(prepare)) == SLOW_PYTHON
    assert prepare[SLOW_PYTHON] > 0.6 * excess
