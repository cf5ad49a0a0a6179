"""Folders for a moment: of who was killed they go with the next one, and nothing of anybody else's ever does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankscope.probes.base import scratch
from rankscope.probes.base.scratch import PREFIX

MAKES = """
import sys
from rankscope.probes.base.scratch import scratch
held = scratch(sys.argv[1])
(held.path / "content").write_text("x")
print(held.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is not locked counts as left."""
    monkeypatch.setattr(scratch, "_LOCKED_S", -1.0)


def made_by_another(place: Path) -> tuple[subprocess.Popen[str], Path]:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKES, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert maker.stdout is not None
    return maker, Path(maker.stdout.readline().strip())


def test_a_folder_goes_with_what_made_it(tmp_path: Path) -> None:
    with scratch.scratch(str(tmp_path)) as one:
        assert one.path.parent == tmp_path and one.path.stat().st_mode & 0o777 == 0o700
        (one.path / "a").mkdir()
    assert not list(tmp_path.iterdir())
    one.close()


def test_what_a_killed_command_left_goes_with_the_next_and_what_a_living_one_holds_stays(tmp_path: Path) -> None:
    maker, left = made_by_another(tmp_path)
    with scratch.scratch(str(tmp_path)):
        assert (left / "content").exists(), "it lives"
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    with scratch.scratch(str(tmp_path)) as one:
        assert list(tmp_path.iterdir()) == [one.path]


def test_what_is_called_so_and_is_none_stays(tmp_path: Path) -> None:
    """`record --out /tmp/rankscope-windows`, say."""
    (tmp_path / f"{PREFIX}windows").mkdir()
    (tmp_path / f"{PREFIX}windows/one").mkdir()
    with scratch.scratch(str(tmp_path)):
        assert (tmp_path / f"{PREFIX}windows/one").exists()


def test_who_has_just_made_a_folder_has_time_to_lock_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_LOCKED_S", 60.0)
    (tmp_path / f"{PREFIX}new").mkdir()
    with scratch.scratch(str(tmp_path)):
        assert (tmp_path / f"{PREFIX}new").exists()


def test_what_is_left_of_a_clock_that_was_ahead_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_LOCKED_S", 60.0)
    maker, left = made_by_another(tmp_path)
    maker.kill()
    maker.communicate()
    now = time.time()
    monkeypatch.setattr(scratch.time, "time", lambda: now - 3600)
    with scratch.scratch(str(tmp_path)):
        assert not left.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
@pytest.mark.parametrize("what", ["another's place", "another's folder", "a link", "a file"])
def test_what_others_can_have_put_there_stays(tmp_path: Path, what: str) -> None:
    """Root's folder, that somebody moved to where ours lie, would else be removed for him."""
    place, kept = tmp_path / "place", tmp_path / "kept"
    place.mkdir()
    place.chmod(0o1777)
    kept.mkdir()
    (kept / "content").write_text("x")
    (kept / scratch._MARK).touch()
    name = place / f"{PREFIX}{'1' * 8}"
    if what == "a link":
        name.symlink_to(kept)
    elif what == "a file":
        name.write_text("x")
    else:
        kept.rename(name)
        if what == "another's folder":
            os.chown(name, 65534, 65534)
        else:
            os.chown(place, 65534, 65534)
            place.chmod(0o755)
        kept = name
    with scratch.scratch(str(place)):
        pass
    assert name.is_symlink() or name.exists()
    assert (kept / "content").exists()
