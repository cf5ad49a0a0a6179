"""A process that a debugger holds is stopped by it, and not by a signal that somebody sent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.observer.finish.last import tracer_of

pytestmark = pytest.mark.beside(ranks=False)

ATTACH, DETACH = 16, 17
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process.pid
        process.kill()


def test_who_traces_a_stopped_process_is_named_until_it_lets_go(sleeper: int) -> None:
    root, mine = Path("/"), f"{Path('/proc/self/comm').read_text().strip()} ({os.getpid()})"
    assert tracer_of(sleeper, root) == ""
    assert LIBC.ptrace(ATTACH, sleeper, None, None) == 0
    os.waitpid(sleeper, 0)
    assert tracer_of(sleeper, root) == mine
    assert LIBC.ptrace(DETACH, sleeper, None, None) == 0
    assert tracer_of(sleeper, root) == ""


def test_a_process_that_a_signal_stopped_has_no_tracer_and_neither_has_one_that_is_gone(sleeper: int) -> None:
    os.kill(sleeper, signal.SIGSTOP)
    os.waitpid(sleeper, os.WUNTRACED)
    assert tracer_of(sleeper, Path("/")) == ""
    os.kill(sleeper, signal.SIGCONT)
    assert tracer_of(2**22 + 1, Path("/")) == ""
