"""A process may map thousands of files with the names of libraries: a few are looked at, for some seconds, and the rest is told."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from rankscope.probes.calls import probe
from rankscope.probes.calls.probe import LIBRARIES_MOST, CallProbe, Library, libraries_of, mapped_libraries


def process(root: Path, pid: int, libraries: int, first: int = 1) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    places = range(first, first + libraries)
    lines = (f"{at:012x}-{at + 1:012x} r-xp 00000000 08:01 {at} /a/libnccl.so.{at}" for at in places)
    (folder / "maps").write_text("\n".join(lines) + "\n")


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Which libraries were looked at: each takes two seconds."""
    found: list[tuple[int, str]] = []
    now = [0.0]

    def attach(_: CallProbe, library: Library) -> None:
        found.append((library.pid, library.name))
        now[0] += 2.0

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(CallProbe, "_attach_library", attach)
    return found


def test_a_few_libraries_of_a_process_are_looked_at_and_how_many_are_not_is_known(tmp_path: Path) -> None:
    process(tmp_path, 7, 5000)
    found = libraries_of(7, ("libnccl.so",), tmp_path)
    assert (len(found.libraries), found.left_out) == (LIBRARIES_MOST, 5000 - LIBRARIES_MOST)
    assert mapped_libraries(7, ("libnccl.so",), tmp_path) == found.libraries
    process(tmp_path, 8, 5)
    assert libraries_of(8, ("libnccl.so",), tmp_path).left_out == 0


def test_one_process_keeps_an_observer_for_seconds_and_what_is_left_out_is_a_note(
    tmp_path: Path, looked: list[tuple[int, str]]
) -> None:
    process(tmp_path, 7, 5000)
    process(tmp_path, 8, 2, first=9000)
    calls = CallProbe(cast(Any, None))
    calls.watch([7, 8], tmp_path)
    assert [pid for pid, _ in looked] == [7] * 5 + [8] * 2
    assert len(calls.notes) == 1 and calls.notes[0].startswith("4995 libraries of pid 7 were not searched")


def test_many_processes_keep_it_for_a_minute(tmp_path: Path, looked: list[tuple[int, str]]) -> None:
    for pid in range(100, 200):
        process(tmp_path, pid, 16, first=1000 * pid)
    calls = CallProbe(cast(Any, None))
    calls.watch(range(100, 200), tmp_path)
    assert len(looked) * 2.0 <= probe._LOOK_ALL_MOST_S
    assert len(calls.notes) == 1 and "pid 100 and 99 more processes" in calls.notes[0]


def test_what_ordinary_processes_share_is_looked_at_once_and_nothing_is_said(
    tmp_path: Path, looked: list[tuple[int, str]]
) -> None:
    for pid in (7, 8, 9):
        process(tmp_path, pid, 5)
    calls = CallProbe(cast(Any, None))
    calls.watch([7, 8, 9], tmp_path)
    assert len(looked) == 5 and calls.notes == []


def owned(root: Path, pid: int, uid: int) -> None:
    (root / "proc" / str(pid) / "status").write_text(
        f"Name:\tx\nState:\tS (x)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t1\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        f"NSpid:\t{pid}\nThreads:\t1\nCpus_allowed_list:\t0\n"
    )


def test_nobodys_large_libraries_take_the_time_for_those_of_others(
    tmp_path: Path, looked: list[tuple[int, str]]
) -> None:
    """Ranks come by the names of their jobs, which their users choose."""
    for pid in range(100, 110):
        process(tmp_path, pid, 16, first=1000 * pid)
        owned(tmp_path, pid, 1666)
    for pid in range(200, 208):
        process(tmp_path, pid, 1, first=1000 * pid)
        owned(tmp_path, pid, 1000)
    calls = CallProbe(cast(Any, None))
    calls.watch([*range(100, 110), *range(200, 208)], tmp_path)
    assert [pid for pid, _ in looked if pid >= 200] == list(range(200, 208))
    assert [pid for pid, _ in looked][5] == 200, "who has had nothing is next"
    assert len(looked) * 2.0 <= probe._LOOK_ALL_MOST_S
    assert len(calls.notes) == 1 and "of pid 100 and 9 more processes" in calls.notes[0]
