"""Real jobs, real faults. As root; on a machine that cannot run them they fail, they are not skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import slow_downloads
from labsupport import RunningJob, started_jobs


@pytest.fixture(scope="session", autouse=True)
def root_rights() -> None:
    assert os.geteuid() == 0, "tests/lab needs root: run scripts/test as root"


@pytest.fixture
def torchrun() -> Iterator[Callable[..., RunningJob]]:
    """Starts a job with torchrun and waits until it trains; with `wait=False` it is the test that waits."""
    with started_jobs() as start:
        yield start


@pytest.fixture(scope="module")
def healthy_job() -> Iterator[RunningJob]:
    """One job for all tests of a file that leave it as it is."""
    with started_jobs() as start:
        yield start("600")


@pytest.fixture
def slow_server() -> Iterator[int]:
    """The port of a server that sends a byte now and then."""
    with slow_downloads.server() as port:
        yield port
