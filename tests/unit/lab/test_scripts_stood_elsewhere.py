"""The scripts run as root: nothing is imported from the folder that somebody stands in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.machine import shell

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
BY_MODULE = sorted(path for path in SCRIPTS.iterdir() if path.is_file() and "&& begin " in path.read_text())
PLANTED = "open('ran', 'a').write(__name__ + ' ')\n"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of somebody's, in which we stand, with modules that Python and the commands look for."""
    for name in ("runpy", "argparse", "json", "pathlib", "subprocess", "labkit", "testkit", "campaignkit", "corpuskit"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKSCOPE_PYTHON", sys.executable)
    return tmp_path


@pytest.mark.parametrize(("script", "word"), [("soak", "--help"), ("lab", "--help"), ("pictures", "")])
def test_a_script_imports_nothing_from_where_one_stands(theirs: Path, script: str, word: str) -> None:
    done = subprocess.run([SCRIPTS / script, *word.split()], capture_output=True, text=True, check=False)
    assert "usage: scripts/" + script in done.stdout + done.stderr
    assert not (theirs / "ran").exists(), (theirs / "ran").read_text()


def test_a_module_in_a_process_of_its_own_imports_nothing_from_there_either(theirs: Path) -> None:
    command = shell.module("campaignkit", "soak", "--help")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0 and "usage: scripts/soak" in done.stdout
    assert not (theirs / "ran").exists()


@pytest.mark.parametrize("path", BY_MODULE, ids=lambda path: path.name)
def test_every_script_starts_its_module_that_way(path: Path) -> None:
    assert len(BY_MODULE) >= 8
    begins = (SCRIPTS / "begin").read_text()
    assert " -m " not in path.read_text() + begins and 'exec "$python" "$here/start.py" "$@"' in begins.splitlines()[-2]
    assert path.read_text().splitlines()[-1].startswith('source "$(dirname "${BASH_SOURCE[0]}")/begin" && begin ')


def test_no_command_asks_python_for_a_module_where_one_stands() -> None:
    kits = [path for path in SCRIPTS.glob("*kit/**/*.py") if "programs" not in path.parts]
    assert [path.name for path in kits if 'sys.executable, "-m"' in path.read_text()] == []
