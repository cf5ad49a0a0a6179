"""Kernel tests run real BPF. On a machine that cannot, they fail: a skipped kernel test proves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bare_probes import LOADED, Observed, load
from watching import HZ, Watched

from rankscope.observer.live import kernel_probes
from rankscope.observer.live.kernel_probes import KernelProbes


@pytest.fixture(scope="session", autouse=True)
def root_rights() -> None:
    assert os.geteuid() == 0, "tests/kernel needs root: run scripts/test as root"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program from its text; it prints 'ready', then waits for a line on its standard input to go on."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *arguments: str, python: str = sys.executable) -> subprocess.Popen[str]:
        path = tmp_path / f"program{len(started)}.py"
        path.write_text(textwrap.dedent(text))
        process = subprocess.Popen(
            [python, str(path), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def nothing_stays_attached() -> Iterator[None]:
    """What a failed test leaves attached, others would count."""
    yield
    for found in list(LOADED):
        found.close()


@pytest.fixture
def observed() -> Iterator[Observed]:
    found = load()
    yield found
    found.close()


@pytest.fixture(scope="module")
def probes() -> Iterator[KernelProbes]:
    loaded = kernel_probes.load(hz=HZ)
    assert loaded.notes == []
    yield loaded
    loaded.close()


@pytest.fixture
def watched(probes: KernelProbes, program: Callable[..., subprocess.Popen[str]]) -> Iterator[Callable[..., Watched]]:
    """Starts a program and observes it, until the test ends."""
    opened: list[Watched] = []

    def start(text: str, *arguments: str, python: str = sys.executable) -> Watched:
        opened.append(Watched(probes, program(text, *arguments, python=python)))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
