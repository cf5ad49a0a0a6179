"""What lies where the black box should be: whatever it is, it keeps nobody waiting, and ends in what is sound of it or in one line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from installed import RANKSCOPE

from rankscope.diagnose.face.top.from_watch import snapshot_of
from rankscope.observer.watch.blackbox import BlackBox, latest_lines, lines_of

SOUND = {"time": 1.75e9, "job": "j", "ranks": [{"rank": 0, "pid": 7, "steps_s": [0.5], "silent_s": 0.1}]}
STRANGE = [
    '{"time": %s, "job": "j", "ranks": []}' % ("9" * 400),
    '{"time": NaN}',
    '{"time": 1e999, "ranks": []}',
    json.dumps({**SOUND, "ranks": 5}),
    json.dumps({**SOUND, "ranks": [3, None, {"rank": None}, {"rank": "x"}]}),
    json.dumps({**SOUND, "ranks": [{"rank": 1, "steps_s": 3, "silent_s": "x", "pid": "\x1b[31m"}]}),
    '{"time": 1.75e9, "job": "j", "ranks": [{"rank": NUMBER, "steps_s": [NUMBER, "x"]}]}'.replace("NUMBER", "9" * 400),
    "[" * 100_000,
]


def shown(state: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(RANKSCOPE), "blackbox", "--state", str(state), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def box(tmp_path: Path) -> BlackBox:
    tmp_path.chmod(0o700)
    made = BlackBox(tmp_path / "blackbox")
    made.append(SOUND, 1.75e9)
    return made


@pytest.mark.parametrize("line", STRANGE)
def test_strange_lines_hide_no_sound_ones(box: BlackBox, line: str) -> None:
    (box.folder / "ring" / "5.jsonl").write_text(line + "\n")
    assert SOUND in list(lines_of(box.folder / "ring"))
    snapshot_of(latest_lines(box.folder), (), "h", 1.75e9)
    done = shown(box.folder.parent, "now")
    assert (done.returncode, done.stderr) == (0, "")
    assert "0.500" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_fifo_keeps_nobody_waiting(box: BlackBox) -> None:
    os.mkfifo(box.folder / "ring" / "5.jsonl")
    box.freeze("j", {"words": "stopped"}, 1.75e9)
    done = shown(box.folder.parent)
    assert (done.returncode, "stopped" in done.stdout) == (0, True)
    done = shown(box.folder.parent, "now")
    assert done.returncode == 0
    assert "0.500" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_one_that_others_could_have_written_is_not_shown(box: BlackBox) -> None:
    os.chown(box.folder, 65534, 65534)
    done = shown(box.folder.parent, "now")
    assert done.returncode not in (0, 1, 2, 70)
    assert "65534" in done.stderr
