"""A reader that is gone and a stdout that is full cost nothing but what they would have read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from builders import build, slow_python

from rankscope.diagnose.face.cli import diagnose as command
from rankscope.diagnose.face.cli import output
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window.folder import Window, find_windows, write_window

Sink = Callable[[], AbstractContextManager[int]]


@contextmanager
def gone() -> Iterator[int]:
    """The end of a pipe whose other end is closed."""
    ours, theirs = os.pipe()
    os.close(ours)
    yield theirs
    os.close(theirs)


@contextmanager
def full() -> Iterator[int]:
    number = os.open("/dev/full", os.O_WRONLY)
    yield number
    os.close(number)


SINKS = pytest.mark.parametrize(("sink", "code"), [(gone, 1), (full, 69)])


@contextmanager
def nobody_reads(monkeypatch: pytest.MonkeyPatch, sink: Sink, name: str = "stdout") -> Iterator[None]:
    """A standard stream takes nothing."""
    with sink() as number, open(number, "w", buffering=1, closefd=False) as stream, monkeypatch.context() as patch:
        patch.setattr(sys, name, stream)
        yield
        output.say_no_more(stream)


@pytest.fixture
def windows(tmp_path: Path) -> list[Window]:
    return build(slow_python(1, 0.2))


@SINKS
@pytest.mark.parametrize("as_json", [False, True])
def test_the_page_is_written_whoever_reads_the_verdict(
    windows: list[Window], tmp_path: Path, sink: Sink, code: int, as_json: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for window in windows:
        write_window(window, tmp_path / "windows")
    page = tmp_path / "page.html"
    arguments = ["diagnose", str(tmp_path / "windows"), "--html", str(page), *(["--json"] if as_json else [])]
    with nobody_reads(monkeypatch, sink):
        assert run(arguments) == code
    assert page.stat().st_size > 1000
    assert capsys.readouterr().err.count("the verdict could not be printed") == (code == 69)


@SINKS
def test_windows_and_history_are_kept_whoever_reads_the_verdict(
    windows: list[Window], tmp_path: Path, sink: Sink, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def observed(*given: object) -> tuple[list[Window], list[Verdict]]:
        judge = given[-1]
        assert callable(judge)
        return windows, judge(windows)

    monkeypatch.setattr(command, "observe_until_told", observed)
    with nobody_reads(monkeypatch, sink):
        assert run(["diagnose", "--history", str(tmp_path / "history"), "--out", str(tmp_path / "out")]) == code
    assert len(find_windows(tmp_path / "out")) == len(windows)
    assert any((tmp_path / "history").iterdir())


def test_a_critical_result_is_one_though_nobody_can_be_told() -> None:
    assert [output.Telling(failed).code(code) for failed in (True, False) for code in (0, 1, 2, 3)] == [
        69, 69, 2, 69, 0, 1, 2, 3,
    ]  # fmt: skip


def test_who_asked_what_goes_on_and_left_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_PATIENCE_S", 0.01)
    with nobody_reads(monkeypatch, gone, "stderr"):
        with output.patience("waiting"):
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
        assert run(["diagnose", "/nowhere"]) == 65  # and not what Python makes of a line that could not be written
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


STARTED = "import sys; sys.argv[1:] = {!r}; from rankscope.diagnose.face.cli.start import main; main()"


def started(arguments: list[str], before: Callable[[], None]) -> int:
    code = [sys.executable, "-c", STARTED.format(arguments)]
    return subprocess.run(code, preexec_fn=before, stderr=subprocess.PIPE, check=False).returncode


def test_closed_streams_are_no_slow_job() -> None:
    assert started(["--version"], lambda: os.close(1)) == 0
    assert started(["--version"], lambda: os.closerange(0, 3)) == 0


def test_a_complaint_that_nobody_reads_has_its_exit_code() -> None:
    with gone() as number:
        assert started(["diagnose", "/nowhere"], lambda: os.dup2(number, 2) and None) == 65  # type: ignore[func-returns-value]


def test_a_long_list_whose_reader_is_gone_is_no_slow_job() -> None:
    with gone() as number:
        assert started(["causes", "--json"], lambda: os.dup2(number, 1) and None) == 0  # type: ignore[func-returns-value]
