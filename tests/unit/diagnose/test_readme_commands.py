"""What the README says can be typed does what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import builders
import pytest
from builders import build

from rankscope.diagnose.cli.main import run
from rankscope.observer.window.folder import write_window

README = Path(__file__).resolve().parents[3] / "README.md"
SECTION = re.compile(r"^### A page, other tools, somebody else\n(.*?)^#", re.MULTILINE | re.DOTALL)


def test_pages_exports_and_bundles_are_made_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for window in build(builders.slow_python(3, 0.08, hosts=2)):
        write_window(window, tmp_path / "DIR")
    monkeypatch.chdir(tmp_path)
    section = SECTION.search(README.read_text())
    assert section is not None
    commands = re.findall(r"^    \.venv/bin/rankscope (.*?)\s*(?:#.*)?$", section[1], re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        code = run(shlex.split(command))
        assert code == (1 if command.startswith(("report", "diagnose")) else 0), (command, capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "DIR",
        "again.html",
        "case.rankscope",
        "page.html",
        "stacks.json",
    ]


def test_the_completion_of_the_readme_is_a_script_that_bash_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "source <(.venv/bin/rankscope completion bash)" in README.read_text()
    assert run(["completion", "bash"]) == 0
    done = subprocess.run(["bash", "-n"], input=capsys.readouterr().out, text=True, capture_output=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
