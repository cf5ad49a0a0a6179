"""Starting, watching and stopping one job of the GPU lab: eight ranks, a GPU each, on two hosts of an emulated machine."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

from labkit.gpu import step_times
from labkit.gpu.sim.sim import Machine
from labkit.launch import Job, Plan, start
from labkit.machine import hosts
from labkit.machine.shell import python
from labkit.programs import FOLDER

JOB_SCRIPT = Path(__file__).with_name("job.py")
# The emulated machine's state; on a RAM file system, since every process of the job maps it.
MACHINE = Path("/run/rslab/machine")
RANKS, PER_HOST = 8, 4
# The ranks exchange only NCCL's unique id over this address; gradients go over the emulated NICs.
RATE_MBIT = 10_000
SAMPLES, SAMPLE_BYTES = 4, 4 << 20


@dataclass(frozen=True, slots=True)
class GpuPlan(Plan):
    """What to start. `sync_every`: the job waits for its GPU once in so many steps; `arguments`: more words for job.py."""

    sync_every: int = 1
    arguments: tuple[str, ...] = ()
    gpu_sample_bytes: int = SAMPLE_BYTES

    @property
    def windows(self) -> float:
        """From outside a step ends where the host waits for its GPU: of a job that seldom does, 10 s show four."""
        return 2 if self.sync_every > 1 else 1


class GpuJob(Job):
    """A running job with its machine. Use as a context manager, as the Job it is."""

    plan: GpuPlan
    healthy_steps = 3

    def __init__(self, plan: GpuPlan, seed: int) -> None:
        super().__init__(plan, seed)
        self.machine = Machine(MACHINE, gpus=RANKS, per_host=PER_HOST)
        self._random = random.Random(seed)

    def __enter__(self) -> GpuJob:
        super().__enter__()
        return self

    def _start(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_samples()
        self.hosts = hosts.build(self.plan.hosts, RATE_MBIT)
        self.machine.start()
        for rank in range(self.plan.ranks):
            self.processes.append(self._start_gpu_rank(rank))

    def _make_samples(self) -> None:
        """A quarter random, the rest zeros: they cost some milliseconds to read back."""
        for number in range(SAMPLES):
            size = self.plan.gpu_sample_bytes
            data = self._random.randbytes(size // 4) + bytes(size * 3 // 4)
            (self.folder / f"sample-{number}.z").write_bytes(zlib.compress(data, 1))

    def _start_gpu_rank(self, rank: int) -> subprocess.Popen[bytes]:
        host = self.hosts[self.plan.host_of(rank)]
        environment = os.environ | self.rank_environment(rank) | self.machine.job_environment(rank)
        environment["PYTHONPATH"] = str(FOLDER)  # control.py
        command = [python(), str(JOB_SCRIPT), "--dir", str(self.folder), "--data", str(self.folder)]
        command += ["--sync-every", str(self.plan.sync_every), *self.plan.arguments]
        cores = os.sched_getaffinity(0)
        with (self.folder / f"rank{rank}.log").open("wb") as log:
            return start(command, log=log.fileno(), env=environment, enter=[host.enter], cores=cores)

    def cores_of(self, rank: int) -> set[int]:
        """All: what the ranks do on the CPU is little, and no rank shall differ by it."""
        return set(os.sched_getaffinity(0))

    def pace(self, since: float, until: float) -> step_times.GpuPace | None:
        return step_times.pace(self.folder, self.plan.ranks, since, until)

    def expect_the_end_of(self, rank: int) -> None:
        """This rank dies of the fault: that it is gone breaks no case."""
        self.may_end.add(rank)

    def observer_command(self, command: list[str]) -> list[str]:
        """The command as it must be run to see the emulated GPUs and NICs."""
        return self.machine.observer_command(command)

    def stop(self) -> None:
        super().stop()
        self.machine.stop()
        shutil.rmtree(MACHINE, ignore_errors=True)
