"""What a command has left on the disk: below its own folders, and wherever else it may write.

Its own folders hold whole windows or none, its folder for temporary files nothing. In other places others write meanwhile. So the command
runs in a group of its own, which no other process of the host is in: what it makes anywhere is that group's.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from campaignkit.chaos.command import Ended
from rankscope.observer.window.folder import is_window, read_window
from rankscope.observer.window.staging import PARTIAL
from rankscope.probes.base.errors import BadData

GROUP = 1_000_000 + os.getpid()  # of the commands of this run; others may stand beside it
# Where a command could leave something, and how many folders deep that is looked for.
_PLACES = {
    "/": 1, "/tmp": 1, "/var/tmp": 1, "/dev/shm": 2, "/dev/mqueue": 1, "/run": 4, "/root": 2, "/var/lib": 4, "/var/cache": 4,
    "/sys/fs/bpf": 3, "/sys/kernel/tracing/instances": 1,
}  # fmt: skip
# What is meant to stay: probes that were compiled for this kernel, whose turn it is, and words of the last sweep.
_STAYS = re.compile(
    r"/rankscope(/probes(/probes-[0-9a-f]{64})?|/(observers|sweep)(/[a-z]+(\.json)?)?)?$|^/tmp/rankscope-chaos-"
)
_OURS = re.compile(r"/rankscope(/|$|-(?!chaos-))")  # a mount's place; others' kits mount below their tests' folders
_PATIENCE_S = 5.0


def of(place: Path, own: Path, ended: Ended) -> list[str]:
    """Windows are whole or absent, and nothing is left in the folder for temporary files; what was killed may leave its half."""
    found = [f"left in TMPDIR: {path.name}" for path in own.iterdir()] if not ended.killed else []
    for out in (place / "out", place / "history/windows"):
        if out.is_symlink() or not out.is_dir():
            continue
        for path in out.iterdir():
            if path.name.startswith(PARTIAL):
                found += [] if ended.killed else [f"left half-written: {path.name}"]
            elif is_window(path):
                try:
                    read_window(path)
                except BadData as error:
                    found.append(str(error)[:100])
            else:
                found.append(f"neither a window nor a half: {path.name}")
    return found


def elsewhere() -> frozenset[str]:
    """What is there of what commands of this run have made outside of their folders, and what is mounted."""
    mounts = frozenset(_mounts())
    found = {path for place, depth in _PLACES.items() for path in _below(place, depth, mounts)}
    ours = {f"mount {place}" for place in mounts if _OURS.search(place)}
    return frozenset(path for path in found if not _STAYS.search(path)) | ours


def left(before: frozenset[str], *, killed: bool, patience_s: float = _PATIENCE_S) -> list[str]:
    """What came since `before`, and stays. What was killed may leave a half, which the next one removes."""
    end = time.monotonic() + patience_s
    while more := {path for path in elsewhere() - before if not (killed and Path(path).name.startswith(PARTIAL))}:
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    return [f"left at {path}" for path in sorted(more)]


def _below(place: str, depth: int, mounts: frozenset[str]) -> Iterator[str]:
    """What of it is our commands'. No mount below it is looked at: its server may not answer."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(place):
            with contextlib.suppress(OSError):
                if entry.path in mounts or _STAYS.search(entry.path + "/"):
                    continue
                if entry.stat(follow_symlinks=False).st_gid == GROUP:
                    yield entry.path
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    yield from _below(entry.path, depth - 1, mounts)


def _mounts() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            yield line.split()[4]
