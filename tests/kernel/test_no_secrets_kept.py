"""Keys and passwords of a command line are in no window, and are shown by no command."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
import small_rank
from installed import RANKSCOPE
from window_texts import texts_of

pytestmark = pytest.mark.beside

SECRET = "hunter2-c0ffee"
OPTIONS = (f"--wandb-api-key={SECRET}", "--token", SECRET, f"-p{SECRET}", f"db=postgres://user:{SECRET}@db/runs")


def _said(*command: str) -> str:
    done = subprocess.run([RANKSCOPE, *command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.stdout + done.stderr


def test_no_value_of_an_option_is_kept_or_shown(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with small_rank.running(Path(folder), port=29843, options=OPTIONS, user=65534) as rank:
            said = [_said("ranks"), _said("ranks", "-v"), _said("ranks", "--json")]
            said.append(_said("record", "-v", "--window", "1", "--pid", str(rank), "--out", str(tmp_path / "out")))
    kept = texts_of(tmp_path / "out")
    assert any("train.py" in one for one in kept) and any("--wandb-api-key" in one for one in kept)
    said.append(_said("diagnose", "-v", str(tmp_path / "out")))
    said.append(_said("diagnose", "--json", str(tmp_path / "out")))
    assert [one for one in (*said, *kept) if SECRET in one] == []
    assert "--token" in said[1]
