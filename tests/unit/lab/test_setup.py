"""What the commands of the labs begin and end with: what a fresh clone needs, one lab at a time, an interrupt in one line."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

import pytest

from benchkit.__main__ import main
from labkit.machine import guard, shell
from labkit.machine.command import EXIT_INTERRUPTED

SETUP = """#!/bin/sh
echo "$0 $*" >>asked
exit STATUS
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty clone whose scripts/setup only writes down that it was called."""
    monkeypatch.delenv("RANKSCOPE_PYTHON", raising=False)
    monkeypatch.setattr(shell, "REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    write_setup(tmp_path, status=0)
    return tmp_path


def write_setup(clone: Path, status: int) -> None:
    script = clone / "scripts/setup"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SETUP.replace("STATUS", str(status)))
    script.chmod(0o755)


def asked(clone: Path) -> list[str]:
    file = clone / "asked"
    return [line.partition(" ")[2] for line in file.read_text().splitlines()] if file.exists() else []


def give_interpreter(clone: Path) -> None:
    """A .venv with all that runs these tests."""
    interpreter = clone / ".venv/bin/python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)


@pytest.mark.parametrize(("torch", "arguments"), [(True, "--lab"), (False, "")])
def test_what_a_fresh_clone_lacks_is_installed(clone: Path, torch: bool, arguments: str) -> None:
    shell.set_up(torch=torch)
    assert asked(clone) == [arguments]


def test_what_is_there_is_not_installed_again(clone: Path) -> None:
    give_interpreter(clone)
    shell.set_up(torch=False)
    assert asked(clone) == []


def test_an_interpreter_that_was_chosen_is_left_as_it_is(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_PYTHON", "/usr/bin/python3")
    shell.set_up(torch=True)
    assert asked(clone) == []


def test_a_setup_that_fails_ends_the_lab_with_its_exit_code(clone: Path) -> None:
    write_setup(clone, status=77)
    with pytest.raises(shell.LabError) as caught:
        shell.set_up(torch=True)
    assert caught.value.exit_code == 77


ENDING = (signal.SIGTERM, signal.SIGHUP)


def test_signals_that_end_a_process_are_interrupts_while_the_lab_is_held_and_no_longer(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in ENDING]
    for number in ENDING:
        with pytest.raises(KeyboardInterrupt), guard.lab_to_oneself(tmp_path / "lock", lambda: 0):
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in ENDING] == before


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
