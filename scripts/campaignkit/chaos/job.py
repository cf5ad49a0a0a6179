"""A small real job: Python processes that work, wait for each other in a library's all-reduce, and write down their own step times."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from labkit.machine.shell import LabError, run

PROGRAMS = Path(__file__).with_name("programs")
LIBRARY = "libtorch_cpu.so"
_START_S = 30.0


def build(source: str, into: Path) -> Path:
    """A library of ours."""
    run("cc", "-O1", "-shared", "-fPIC", "-o", into, PROGRAMS / source, "-ldl")
    return into


def build_program(source: str, into: Path) -> Path:
    """A program of ours."""
    run("cc", "-O1", "-o", into, PROGRAMS / source)
    return into


@dataclass(slots=True)
class Job:
    """A running job. `folder` has the library that is mapped, the program that storms start, and one file of step times per rank."""

    folder: Path
    library: Path
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def alive(self) -> bool:
        return all(rank.poll() is None for rank in self.ranks)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(rank.pid for rank in self.ranks)

    def steps(self, rank: int) -> list[float]:
        """When each step ended, by CLOCK_MONOTONIC."""
        try:
            data = (self.folder / f"times-{rank}").read_bytes()
        except FileNotFoundError:
            return []
        return [time_s for (time_s,) in struct.iter_unpack("<d", data[: len(data) // 8 * 8])]

    def tell(self, storm: str) -> None:
        """Begin a storm below rank 0, or end it ('')."""
        channel = self.ranks[0].stdin
        assert channel is not None
        channel.write(f"{storm}\n".encode())
        channel.flush()


@contextmanager
def running(folder: Path, ranks: int, library: Path | None = None, user: int | None = None) -> Iterator[Job]:
    """A job that steps, of another user if one is given. LabError where it does not come to that."""
    folder.mkdir(parents=True, exist_ok=True)
    if user is not None:
        os.chown(folder, user, user)
    job = Job(folder, library or build("library.c", folder / LIBRARY))
    if not (folder / "tick").exists():
        build_program("tick.c", folder / "tick")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        for rank in range(ranks):
            job.ranks.append(start_rank(job, rank, ranks, port, user))
        deadline = time.monotonic() + _START_S
        while not all(len(job.steps(rank)) > 5 for rank in range(ranks)):
            if not job.alive() or time.monotonic() > deadline:
                logs = [(folder / f"log-{rank}").read_text(errors="replace").strip() for rank in range(ranks)]
                raise LabError(f"the job does not step: {' '.join(logs)[-200:]}")
            time.sleep(0.05)
        yield job
    finally:
        for process in job.ranks:
            process.kill()
            process.wait()


def start_rank(job: Job, rank: int, world: int, port: int, user: int | None = None) -> subprocess.Popen[bytes]:
    """One rank, which runs a copy of the program where another user may not enter this clone."""
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    environment = os.environ | {name: str(value) for name, value in said.items()} | {"MASTER_ADDR": "127.0.0.1"}
    times = job.folder / f"times-{rank}"
    times.unlink(missing_ok=True)  # of a job that ran here before
    program, interpreter = PROGRAMS / "rank.py", sys.executable
    if user is not None:
        interpreter = str(Path(interpreter).resolve())
        program, _ = (Path(shutil.copy(PROGRAMS / name, job.folder)) for name in ("rank.py", "storm.py"))
    command = [interpreter, str(program), str(job.library), str(times)]
    with (job.folder / f"log-{rank}").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=log, env=environment, cwd=job.folder, user=user, group=user
        )
