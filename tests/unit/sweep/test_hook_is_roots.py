"""Which programs root runs as a hook: those that only root can change, as they were when that was seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweep_trees import SWEPT, program

from rankscope.diagnose.sweep import hook
from rankscope.diagnose.sweep.hook import run_hook
from rankscope.probes.base.folders import trusted_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
SOMEBODY = 65534


def _refused(name: Path | str, because: str) -> None:
    assert because in run_hook(str(name), SWEPT, 10)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return program(tmp_path / "hook", f"touch {tmp_path}/ran")


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path) -> Iterator[None]:
    yield
    assert not (tmp_path / "ran").exists()


def test_of_who_called_sudo_no_program_is_run_as_root(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN somebody whose folders are good enough to write into
    monkeypatch.setenv("SUDO_UID", str(SOMEBODY))
    os.chown(mine, SOMEBODY, SOMEBODY)
    _refused(mine, f"it belongs to user {SOMEBODY}; it was not run")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_what_a_group_can_write_is_no_hook_nor_what_is_sticky_and_no_folder(mine: Path, mode: int) -> None:
    mine.chmod(mode)
    _refused(mine, "others can write it; it was not run")


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_nor_is_one_in_a_folder_that_a_group_or_all_can_write(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ours = program(folder / "hook", f"touch {tmp_path}/ran")
    folder.chmod(mode)
    _refused(ours, "others can write it; it was not run")


def test_the_owner_of_a_sticky_folder_may_rename_what_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "sticky"
    folder.mkdir()
    ours = program(folder / "hook", f"touch {tmp_path}/ran")
    folder.chmod(0o1777)
    os.chown(folder, SOMEBODY, SOMEBODY)
    _refused(ours, f"it belongs to user {SOMEBODY}; it was not run")


def test_a_name_without_its_beginning_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    _refused("usr/bin/true", "its path must begin with /")
    _refused(tmp_path, "it is no file")
    os.mkfifo(tmp_path / "fifo", 0o755)
    _refused(tmp_path / "fifo", "it is no file")


def test_what_is_run_is_what_was_looked_at(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a link that leads somewhere else as soon as the program behind it was found good
    good, link = program(tmp_path / "good", f"ps -o sid= -p $$ > {tmp_path}/good_ran"), tmp_path / "link"
    link.symlink_to(good)

    def turned(name: str) -> Path:
        found = trusted_program(name)
        link.unlink()
        link.symlink_to(mine)
        return found

    monkeypatch.setattr(hook, "trusted_program", turned)
    assert run_hook(str(link), SWEPT, 10) == ""
    # THEN it ran, in a session of its own, which a Ctrl-C for the sweep does not reach
    assert int((tmp_path / "good_ran").read_text()) != os.getsid(0)


def test_where_the_kernel_does_not_list_children_a_hook_ends_with_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "_children", frozenset)
    slow = program(tmp_path / "slow", f"sleep 60 & echo $! > {tmp_path}/child; sleep 60")
    assert "did not end within 2 s" in run_hook(str(slow), SWEPT, 2)
    until = time.monotonic() + 5
    state = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    while state.exists() and " Z " not in state.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    assert not state.exists() or " Z " in state.read_text()
