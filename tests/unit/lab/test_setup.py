"""On a fresh clone the lab installs what it needs before it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from labkit.machine import shell

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
