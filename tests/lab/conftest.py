"""Real jobs, real faults. As root; on a machine that cannot run them they fail, they are not skipped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from labsupport import PLAIN_JOB, RunningJob, trains


@pytest.fixture(scope="session", autouse=True)
def root_rights() -> None:
    assert os.geteuid() == 0, "tests/lab needs root: run scripts/test as root"


@pytest.fixture
def torchrun() -> Iterator[Callable[..., RunningJob]]:
    """Starts a job with torchrun and waits until it trains."""
    jobs: list[RunningJob] = []

    def start(*arguments: str, ranks: int = 2, restarts: int = 0, script: Path = PLAIN_JOB) -> RunningJob:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(port), "--max-restarts", str(restarts)]
        command += [str(script), *arguments]
        launcher = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        jobs.append(RunningJob(launcher, port))
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            assert launcher.poll() is None, "the job ended before it trained"
            if sum(trains(pid) for pid in jobs[-1].ranks()) == ranks:
                time.sleep(1.0)
                return jobs[-1]
            time.sleep(0.2)
        raise AssertionError("the job did not begin to train")

    yield start
    for job in jobs:
        ranks = job.ranks()
        if job.launcher.poll() is None:
            os.killpg(job.launcher.pid, signal.SIGKILL)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.launcher.wait()
