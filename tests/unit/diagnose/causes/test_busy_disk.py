"""A rank waits in reads, and the disk below its files is busy all the time: rows and words as the observer itself writes them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from builders import Job, Work, build

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.observer.live.gauges import Gauges
from rankscope.probes.host.block_devices import disk_words, mount_words, number_in
from rankscope.probes.host.mounts import Mounts, parse_mountinfo

WINDOW_S = 20.0
MOUNTS = Mounts(parse_mountinfo(b"29 1 254:1 / /data rw,relatime shared:1 - ext4 /dev/vda1 rw\n"))


def disk_rows(root: Path, busy_s: dict[str, float]) -> list[dict[str, object]]:
    """What the gauges say of disks ('254 1 vda1') that were busy for so long."""
    (root / "proc").mkdir()
    statistics = root / "proc/diskstats"
    statistics.write_text("".join(f"{disk} 1 0 8 1 1 0 8 1 0 1 1\n" for disk in busy_s))
    gauges = Gauges((), root)
    gauges.begin()
    statistics.write_text(
        "".join(f"{disk} 97 0 776 1 1 0 8 1 0 {1 + 1000 * busy:.0f} 1\n" for disk, busy in busy_s.items())
    )
    return [asdict(row) for row in gauges.host_rows() if row.name == "disk.busy_s"]


def slow_reads(rows: list[dict[str, object]]) -> Suspect:
    read = Work("io", "read", 0, 40, detail=mount_words(MOUNTS.by_device(254, 1), 254, 1), caller="Shard.load_batch")
    (suspect,) = diagnose(build(Job(extra={2: [(read, 0.1)]}, counters=rows, window_s=WINDOW_S))).suspects
    assert (suspect.component, suspect.cause, suspect.ranks) == ("storage", "slow-read", (2,))
    return suspect


@pytest.mark.parametrize(
    ("busy", "convicted"),
    [
        ({"254 1 vda1": 19.0}, True),
        ({"254 1 vda1": 10.0}, False),
        ({"254 17 vdb1": 19.0, "25 41 sda": 19.0}, False),
        ({}, False),
    ],
)
def test_only_the_disk_below_the_files_convicts_and_only_where_it_is_busy(
    tmp_path: Path, busy: dict[str, float], convicted: bool
) -> None:
    said = [each for each in slow_reads(disk_rows(tmp_path, busy)).evidence if each.source == "disk"]
    assert [each.measure for each in said] == (["vda1 254:1 busy"] if convicted else [])


def test_a_busy_disk_makes_the_verdict_surer(tmp_path: Path) -> None:
    busy = slow_reads(disk_rows(tmp_path, {"254 1 vda1": 19.0}))
    assert busy.confidence > slow_reads([]).confidence


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("/data (ext4 254:1)", "254:1"),
        ("/data 12:30 (ext4 254:1)", "254:1"),
        ("device 8:17", "8:17"),
        ("254:0 read", "254:0"),
        ("/dev/shm (tmpfs)", ""),
        ("", ""),
    ],
)
def test_the_number_is_read_back_from_the_words(text: str, number: str) -> None:
    assert number_in(text) == number


def test_words_hold_their_number_however_long_the_mount_point_is() -> None:
    (mount,) = parse_mountinfo(b"29 1 254:1 / /" + b"x" * 4000 + b" rw - ext4 /dev/vda1 rw\n")
    assert number_in(mount_words(mount, 254, 1)[:200]) == "254:1"
    assert number_in(mount_words(None, 8, 17)) == "8:17"
    assert number_in(disk_words("nvme0n1p2", 259, 3)) == "259:3"
