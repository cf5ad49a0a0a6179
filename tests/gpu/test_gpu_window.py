"""A real window of a real job on the emulated GPU machine: shares, steps and owners agree with the job's own account."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from labkit.gpu import step_times as account
from labkit.gpu.sim.sim import CACHE, Machine, build
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.folder import Window, find_windows, read_window

pytestmark = pytest.mark.apart

REPOSITORY = Path(__file__).resolve().parents[2]

RANKS, PER_HOST = 7, 4
JOB, ORDERS = REPOSITORY / "scripts/labkit/gpu/job.py", REPOSITORY / "scripts/labkit/training"  # control.py
# Sized for seven ranks that share two CPUs with everything else: steps of about 0.6 s.
ARGUMENTS = ("--compute-ms", "290", "--gradient-mb", "2300", "--batch-mb", "2200")
WINDOW_S = 10.0
SLOW_GPU, SLOW_PYTHON = 2, 5


class PlainJob:
    """The lab's GPU job without the lab's networks: ranks on this host, four GPUs to a pod."""

    def __init__(
        self, folder: Path, ranks: int = RANKS, arguments: Sequence[str] = ARGUMENTS, sample_bytes: int = 4 << 20
    ) -> None:
        self.folder, self.ranks, self.arguments, self.sample_bytes = folder, ranks, arguments, sample_bytes
        self.machine = Machine(folder / "machine", gpus=8, per_host=PER_HOST)
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> PlainJob:
        self.machine.start()
        for number in range(3):
            data = zlib.compress(os.urandom(self.sample_bytes // 4) + bytes(self.sample_bytes * 3 // 4), 1)
            (self.folder / f"sample-{number}.z").write_bytes(data)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(self.ranks):
            names = {
                "RANK": rank, "WORLD_SIZE": self.ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": self.ranks, "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "PYTHONPATH": ORDERS,
            }  # fmt: skip
            words = [sys.executable, str(JOB), "--dir", str(self.folder), "--data", str(self.folder), *self.arguments]
            environment = {name: str(value) for name, value in names.items()} | self.machine.job_environment(rank)
            with (self.folder / f"rank{rank}.log").open("wb") as log:
                self.processes.append(subprocess.Popen(words, stdout=log, stderr=log, env=os.environ | environment))
        deadline = time.monotonic() + 60
        while min(len(self.steps(rank)) for rank in range(self.ranks)) < 3:
            assert all(process.poll() is None for process in self.processes), (self.folder / "rank0.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return self

    def steps(self, rank: int) -> list[account.Step]:
        return account.read(self.folder / f"rank{rank}.steps")

    def slow_python(self, rank: int, seconds: float) -> None:
        order = {"function": "prepare", "manner": "busy", "seconds": seconds}
        (self.folder / f"rank{rank}.control").write_text(json.dumps(order))

    def heal(self) -> None:
        for path in self.folder.glob("*.control"):
            path.unlink()
        for index in range(8):
            self.machine.gpu(index).set(speed=1.0)

    def window(self, seconds: float = WINDOW_S) -> tuple[Window, list[dict[str, float]]]:
        """One window, and the job's own means per rank over its steps in it."""
        out = self.folder / "windows"
        shutil.rmtree(out, ignore_errors=True)
        pids = [word for process in self.processes for word in ("--pid", str(process.pid))]
        options = ["--out", str(out), "--window", f"{seconds:g}", *pids]
        command = [sys.executable, "-m", "rankscope.diagnose.face.cli.main", "record", *options]
        done = subprocess.run(
            self.machine.observer_command(command),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        until = time.monotonic()
        assert done.returncode == 0, done.stderr
        window = read_window(find_windows(out)[0])
        truths = []
        for rank in range(self.ranks):
            mine = [step for step in self.steps(rank) if until - seconds < step.end < until]
            truths.append(
                {
                    "own": float(np.mean([step.seconds - step.exchange for step in mine])),
                    "seconds": float(np.mean([step.seconds for step in mine])),
                    "exchange": float(np.mean([step.exchange for step in mine])),
                    "compute": float(np.mean([step.compute for step in mine])),
                    "copy": float(np.mean([step.copy for step in mine])),
                    "host": float(np.mean([step.host for step in mine])),
                }
            )
        return window, truths

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.machine.stop()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainJob]:
    build(CACHE)
    with PlainJob(tmp_path_factory.mktemp("gpu-window")) as running:
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
    window, truths = job.window()
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
        window, truths = job.window()
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


# On two CPUs, two ranks: their hosts are to have one each.
IDLE = {
    "launch-bound": (("--layers", "4000", "--compute-ms", "10"), "Kernel.launch"),
    "synchronised": (("--layers", "4000", "--compute-ms", "80", "--check-every", "400"), "Stream.synchronize"),
}


@pytest.mark.parametrize("cause", IDLE)
def test_hosts_that_keep_their_gpus_idle_are_told_with_the_place(cause: str, tmp_path: Path) -> None:
    arguments, place = IDLE[cause]
    # Samples so small that to make them is no waste.
    with PlainJob(tmp_path, 2, (*arguments, "--gradient-mb", "10", "--batch-mb", "10"), 1 << 16) as job:
        window, _ = job.window(5.0)
    verdict = diagnose([window])
    assert verdict.status == "inefficient", (verdict.status, verdict.suspects, verdict.notes)
    first = verdict.suspects[0]
    assert (first.component, first.cause, first.ranks) == ("gpu", cause, (0, 1))
    assert first.function is not None and first.function.name == place
