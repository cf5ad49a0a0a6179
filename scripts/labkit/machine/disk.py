"""The shards that ranks read, and the block device that reads of them reach."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from labkit.machine.shell import quietly, run

FOLDER = Path(os.environ.get("RANKSCOPE_LAB_DIR", "/var/tmp")) / "rslab"
SHARDS = FOLDER / "shards"
IMAGE = FOLDER / "shards.img"
FILES_PER_SHARD = 2
FILE_BYTES = 4 << 20
MAX_RANKS = 8
TABLE_BYTES = 32 << 20


def device_of(path: Path, root: Path = Path("/")) -> str | None:
    """MAJOR:MINOR of the whole disk that holds `path`; None where its file system has no device of its own (overlay, btrfs, …)."""
    number = path.stat().st_dev
    entry = root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    if os.major(number) == 0 or not entry.exists():
        return None
    place = entry.resolve()
    # The kernel throttles whole disks, not partitions: name the disk.
    disk = place.parent if (place / "partition").exists() else place
    return (disk / "dev").read_text().strip()


def make_shards() -> tuple[str | None, str]:
    """Fill a folder per rank with files on a real device; the device (None: none) and in words what it is.

    Where the lab's folder is on no block device of its own, the shards go to a loop device with a file system on it.
    """
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    SHARDS.mkdir(exist_ok=True)
    device = device_of(SHARDS)
    kind = "the disk"
    if device is None:
        size = MAX_RANKS * (FILES_PER_SHARD * FILE_BYTES + TABLE_BYTES) * 5 // 4
        with IMAGE.open("wb") as image:
            image.truncate(size)
        if quietly("mkfs.ext4", "-q", "-F", IMAGE) and quietly("mount", "-o", "loop", IMAGE, SHARDS):
            device, kind = device_of(SHARDS), "a loop device"
    for rank in range(MAX_RANKS):
        folder = SHARDS / f"rank{rank}"
        folder.mkdir(exist_ok=True)
        for number in range(FILES_PER_SHARD):
            (folder / f"part-{number}.bin").write_bytes(os.urandom(FILE_BYTES))
    # Dirty pages cannot be dropped from the cache: only reads of written-back files reach the device.
    run("sync", "-f", SHARDS)
    return device, kind if device else "no block device"


def make_tables(ranks: int) -> None:
    """Write the table that each rank maps into memory, and leave none of it in the page cache: who reads it is charged for it."""
    for rank in range(ranks):
        with (SHARDS / f"table{rank}").open("wb") as file:
            file.write(os.urandom(1 << 20) * (TABLE_BYTES >> 20))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove_all() -> int:
    """Remove the lab's folder; 1 where there was one."""
    if os.path.ismount(SHARDS):
        quietly("umount", SHARDS)
    if not FOLDER.exists():
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    return 1
