"""A bench that somebody ends says so in a line: whichever it is, those that need no root too."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import pytest

from benchkit.__main__ import main
from labkit.machine.command import EXIT_INTERRUPTED


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def test_a_bench_that_is_interrupted_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "timings"])
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        assert main() == EXIT_INTERRUPTED
    except KeyboardInterrupt:  # which would end all tests
        pytest.fail("it was not caught")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert capsys.readouterr().err.strip() == "bench: interrupted; what it started is ended"
