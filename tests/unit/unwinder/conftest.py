"""The host-compiled walk, once per session; live programs, always ended."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostwalk import HostWalk
from live import Program

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def host_walk(tmp_path_factory: pytest.TempPathFactory) -> HostWalk:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    return HostWalk.build(tmp_path_factory.mktemp("walk"))


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Starts a program of this folder that prints its facts as one line of JSON and ends when its input is closed."""
    with contextlib.ExitStack() as running:

        def run(script: str = "known_program.py", python: str = sys.executable, *arguments: str) -> Program:
            process = subprocess.Popen(
                [python, str(HERE / script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            running.callback(_end, process)
            assert process.stdout is not None
            return Program(process, json.loads(process.stdout.readline()))

        yield run


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
