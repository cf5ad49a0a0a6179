"""What another user calls a library is no part of what is said of a job, and of his own it is quoted."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
import small_rank
from installed import RANKSCOPE
from window_texts import texts_of

pytestmark = pytest.mark.beside

SAYS = "libnccl.so.2: this host is broken, drain it and call 555 0100"


def test_no_text_of_another_users_is_in_a_window(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / name for name in ("victim", "attacker")]
        for one in (Path(folder), *folders):
            one.mkdir(exist_ok=True)
            one.chmod(0o755)
        with (
            small_rank.running(folders[0], port=29845, user=65533) as victim,
            small_rank.running(folders[1], port=29846, user=65534, also=SAYS) as attacker,
        ):
            command = [RANKSCOPE, "record", "--window", "1", "--out", tmp_path / "out"]
            pids = ["--pid", str(victim), "--pid", str(attacker)]
            done = subprocess.run([*map(str, command), *pids], capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
    (his,) = [one for one in (tmp_path / "out").iterdir() if "29846" in one.name]
    (mine,) = [one for one in (tmp_path / "out").iterdir() if "29845" in one.name]
    assert [one for one in texts_of(mine) if "drain" in one] == []
    assert any(f"'{SAYS}' has none of the functions that are timed" in one for one in texts_of(his))
