"""What a command has left on the disk: below its own folders, and wherever else it may write.

Its own folders hold whole windows or none, its folder for temporary files nothing. In the places of all commands others write meanwhile:
there that counts which came while it ran, stays, is called as what is ours, and is open in no living process.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from chaoskit.command import Ended
from rankscope.observer.window.folder import is_window, read_window
from rankscope.observer.window.staging import PARTIAL
from rankscope.probes.errors import BadData

OURS = "rankscope"
# Where anybody writes: what is called as ours counts. How many folders deep.
_SHARED = {Path("/tmp"): 1, Path("/var/tmp"): 1, Path("/dev/shm"): 1, Path("/run"): 1, Path("/run/netns"): 1,
           Path("/sys/fs/bpf"): 3, Path("/sys/kernel/tracing/instances"): 1}  # fmt: skip
# Where only we write: all counts but what is meant to stay. Commands of others keep states and histories in /var/lib.
_OWN = tuple(Path(place) / OURS for place in ("/run", "/var/lib", "/var/cache"))
_STAYS = re.compile(
    r"^/var/cache/rankscope/probes(/probes-[0-9a-f]{64})?$"
    r"|^/run/rankscope/(observers|sweep)(/[a-z]+(\.json)?)?$"
    r"|^/var/lib/rankscope/(?!(.*/)?\.)"
)
# Kits and their jobs, this one's too.
_KITS = re.compile(r"/rankscope-(chaos|soak|bench|corpus|fleet|fuzz|lab|trial)-")
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
    """What is there now of what could be ours: files, folders and mounts."""
    found = {str(path) for place, depth in _SHARED.items() for path in _below(place, depth) if OURS in path.name}
    found |= {str(path) for place in _OWN for path in _below(place, 9)}
    return frozenset(path for path in found if not _KITS.search(path) and not _STAYS.search(path)) | _mounts()


def left(before: frozenset[str], *, killed: bool, patience_s: float = _PATIENCE_S) -> list[str]:
    """What came since and stays, and no living process has open. What others make from now on is not looked at. What was killed may leave
    a half, which the next one removes."""
    more = frozenset(path for path in elsewhere() - before if not (killed and Path(path).name.startswith(PARTIAL)))
    end = time.monotonic() + patience_s
    while more and (more := more - _open()) and time.monotonic() < end:
        time.sleep(0.2)
        more &= elsewhere()
    return [f"left at {path}" for path in sorted(more)]


def _below(place: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(place):
            yield Path(entry.path)
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _below(Path(entry.path), depth - 1)


def _mounts() -> frozenset[str]:
    """Where something is mounted that is called as ours, but what kits mount."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
        places = (line.split()[4] for line in lines)
        return frozenset(f"mount {place}" for place in places if OURS in place and not _KITS.search(place))
    return frozenset()


def _open() -> set[str]:
    """What living processes have open, or stand in, of all that; and the folders above it."""
    found: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):
            for link in (f"/proc/{pid}/cwd", *(f"/proc/{pid}/fd/{one}" for one in os.listdir(f"/proc/{pid}/fd"))):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    target = os.readlink(link)  # noqa: PTH115
                    if OURS in target:
                        found |= {target, *(str(above) for above in Path(target).parents)}
    return found
