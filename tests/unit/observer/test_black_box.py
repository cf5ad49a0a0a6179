"""The black box where it is attacked: full disks, services that are killed, users who write much."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.observer.watch import blackbox
from rankscope.observer.watch.blackbox import BlackBox, frozen_in, latest_lines, lines_of


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=False).returncode
    ):
        pytest.skip("needs to mount a disk")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_what_is_frozen_on_a_full_disk_is_there_whole_or_not_at_all(small_disk: Path) -> None:
    # GIVEN a ring that fits its disk once
    box = BlackBox(small_disk)
    for at in range(30):
        box.append({"time": at, "text": "x" * 1000}, float(at))
    # WHEN it is to be frozen
    with pytest.raises(OSError, match="No space left"):
        box.freeze("job", {"words": "rank 1 killed"}, 100.0)
    # THEN nothing half is listed or left
    assert frozen_in(small_disk) == []
    assert list((small_disk / "frozen").iterdir()) == []


def test_a_line_for_which_there_was_no_room_takes_no_other_with_it(small_disk: Path) -> None:
    box = BlackBox(small_disk)
    (small_disk / "full").write_bytes(bytes(48 << 10))
    with pytest.raises(OSError, match="No space left"):
        for at in range(30):
            box.append({"time": at, "text": "x" * 1000}, float(at))
    kept = len(list(lines_of(small_disk / "ring")))
    (small_disk / "full").unlink()
    box.append({"time": 100}, 100.0)
    assert len(list(lines_of(small_disk / "ring"))) == kept + 1


def test_a_service_that_was_killed_as_it_froze_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "frozen" / ".draft").mkdir(parents=True, mode=0o700)
    box = BlackBox(tmp_path)
    assert frozen_in(tmp_path) == []
    frozen = box.freeze("job", {}, 100.0)
    assert list((tmp_path / "frozen").iterdir()) == [frozen]


def test_many_ranks_of_one_user_keep_no_lines_of_others_out_of_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blackbox, "FILE_BYTES", 10_000)
    box = BlackBox(tmp_path)
    for _ in range(100):
        box.append({"time": 1.0, "whose": 2000, "text": "x" * 900}, 1.0, "user 2000")
    for _ in range(10):
        box.append({"time": 2.0, "whose": 1000, "text": "x" * 100}, 2.0, "user 1000")
    box.append({"time": 3.0, "whose": 3000, "text": "x" * 100}, 3.0, "user 3000")
    kept = Counter(line["whose"] for line in lines_of(tmp_path / "ring"))
    assert kept[1000] == 10 and kept[3000] == 1 and kept[2000] > 0


def test_lines_of_others_make_nobodys_evidence_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox, "_OF_OTHERS_BYTES", 2000)
    box = BlackBox(tmp_path)
    for at in range(0, 600, 5):
        box.append({"time": at, "whose": 2000, "text": "x" * 900}, float(at), "user 2000")
        box.append({"time": at, "whose": 1000}, float(at), "user 1000")
    # All were written in one second: files of later minutes are newer.
    for number, path in enumerate(sorted((tmp_path / "ring").iterdir())):
        os.utime(path, (number, number))
    lines = list(lines_of(box.freeze("job", {}, 600.0, "user 1000")))
    # THEN there is all of the own, and of the others the end
    assert [line["time"] for line in lines if line["whose"] == 1000] == list(range(0, 600, 5))
    assert [line["time"] for line in lines if line["whose"] == 2000] == [590, 595]


def test_a_user_whose_jobs_die_every_second_has_no_more_of_them_kept_than_there_is_room_for() -> None:
    box = BlackBox(Path("/nowhere"))
    assert sum(box.may_freeze("user 2000", float(at)) for at in range(700)) == blackbox.FROZEN_MOST
    assert box.may_freeze("user 1000", 700.0)
    assert box.may_freeze("user 2000", 721.0)


def test_evidence_of_a_clock_that_was_ahead_drives_out_none_of_now(tmp_path: Path) -> None:
    box, now = BlackBox(tmp_path), time.time()
    for at in range(blackbox.FROZEN_MOST):
        box.freeze(f"ahead-{at}", {}, now + 86400 + at)
    for at in range(3):
        box.freeze(f"now-{at}", {}, now + at)
    kept = [path.name.partition("-")[2] for path in frozen_in(tmp_path)]
    assert len(kept) == blackbox.FROZEN_MOST
    assert {"now-0", "now-1", "now-2", "ahead-15"} <= set(kept) and "ahead-0" not in kept


def test_the_last_minutes_are_those_since_the_clock_was_set_back(tmp_path: Path) -> None:
    box, now = BlackBox(tmp_path), time.time()
    ring = tmp_path / "ring"
    for slot in range(4):
        at = now + 86400 + slot * blackbox.FILE_S
        box.append({"time": at}, at)
        os.utime(ring / f"{int(at // blackbox.FILE_S) % blackbox.FILES}.jsonl", (at, at))
    box.append({"time": now}, now)
    assert now in [line["time"] for line in latest_lines(tmp_path)]
