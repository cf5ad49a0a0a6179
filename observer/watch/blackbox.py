"""The black box: the last minutes of tier 0 in a bounded ring on disk, frozen beside a hang or a death before anybody restarts the job.

    DIR/ring/<0…5>.jsonl    one line per flush, a file per two minutes, the oldest written over
    DIR/frozen/<name>/      the ring as it was, and why.json; `FROZEN_MOST`, and no more than `FROZEN_BYTES` in all: of whose user,
                            and of these of whose job, there is most the oldest goes. Nobody's dying jobs drive out others' evidence

Lines are appended, and a reader leaves out what is cut off: whoever is killed loses the last seconds at most. A disk that is full costs the
box, never the service.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankscope.observer.window.staging import safe_name
from rankscope.probes.host.folders import create_file, open_plain, opened_folder, read_plain

FILES = 6
FILE_S = 120.0
FILE_BYTES = 2 << 20  # 64 ranks with 5 steps a second: 1.5 MB in two minutes
FROZEN_MOST = 16
FROZEN_BYTES = 64 << 20
_READ_MOST = 4 * FILE_BYTES
_DIGITS_MOST = 18
_END_BYTES = 256 << 10  # 20 s of 64 ranks with 5 steps a second, ten minutes of two


@dataclass(slots=True)
class BlackBox:
    """One host's. Writing never raises but OSError and UnsafePlace (an OutputFailed)."""

    folder: Path
    _slot: int = -1
    _bytes: int = 0
    lost_lines: int = 0

    def append(self, content: dict[str, Any], now: float) -> None:
        """One line; `now` in Unix time."""
        slot = int(now // FILE_S)
        line = json.dumps(content, separators=(",", ":")).encode() + b"\n"
        with opened_folder(self.folder / "ring", make=True) as ring:
            name = f"{slot % FILES}.jsonl"
            fresh = slot != self._slot and not _is_of(ring, name, slot)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
            descriptor = os.open(name, flags, 0o600, dir_fd=ring)
            try:
                if slot != self._slot:
                    self._slot, self._bytes = slot, os.fstat(descriptor).st_size
                if self._bytes + len(line) > FILE_BYTES:
                    self.lost_lines += 1
                    return
                self._bytes += os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def freeze(self, job: str, why: dict[str, Any], now: float, user: str = "") -> Path:
        """Copy the ring aside; `user`: whose job it is. The folder that it is in."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        whose = f"+{safe_name(user)}" if user else ""
        place = self.folder / "frozen" / f"{stamp}-{safe_name(job)[:80]}{whose}"
        with opened_folder(place, make=True) as into:
            for path in sorted((self.folder / "ring").glob("*.jsonl")):
                _write(into, path.name, _content(path))
            _write(into, "why.json", json.dumps(why, indent=2).encode())
        self._within_bounds(place)
        return place

    def add(self, frozen: Path, name: str, content: bytes) -> None:
        """Another file into what is frozen: a verdict that came later."""
        with opened_folder(frozen) as into:
            _write(into, name, content)

    def _within_bounds(self, newest: Path) -> None:
        kept = {path: sum(each.stat().st_size for each in path.iterdir()) for path in frozen_in(self.folder)}
        while len(kept) > 1 and (len(kept) > FROZEN_MOST or sum(kept.values()) > FROZEN_BYTES):
            held = Counter[str]()
            for path, size in kept.items():
                for whose in _whose(path):
                    held[whose] += 1 if len(kept) > FROZEN_MOST else size
            # Of equals `max` takes the first, which is the oldest.
            gone = max((path for path in kept if path != newest), key=lambda path: [held[one] for one in _whose(path)])
            shutil.rmtree(gone, ignore_errors=True)
            del kept[gone]


def _whose(path: Path) -> tuple[str, str]:
    """User and job, the user's, as the name of a frozen folder has them: <time>-<job>+<user>."""
    job, _, user = path.name.partition("-")[2].partition("+")
    return f"+{user}", f"{job}+{user}"


def frozen_in(folder: Path) -> list[Path]:
    """What is frozen, oldest first."""
    try:
        return sorted(path for path in (folder / "frozen").iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a ring or of what is frozen, in the order of their time; those that are cut off are left out."""
    found: list[dict[str, Any]] = []
    for path in folder.glob("*.jsonl"):
        found += _objects(_content(path))
    yield from sorted(found, key=lambda one: float(one["time"]))


def latest_lines(folder: Path) -> list[dict[str, Any]]:
    """The last minutes of a ring, oldest first: the ends of its two newest files. For who looks again and again."""
    with contextlib.suppress(OSError):
        newest = sorted((folder / "ring").glob("*.jsonl"), key=lambda path: path.stat().st_mtime)[-2:]
        return sorted((line for path in newest for line in _end_of(path)), key=lambda one: float(one["time"]))
    return []


def _content(path: Path) -> bytes:
    """Of a file of the ring; nothing of what is none, so that it hides no other one."""
    try:
        return read_plain(path, _READ_MOST)
    except OSError:
        return b""


def _end_of(path: Path) -> Iterator[dict[str, Any]]:
    with os.fdopen(open_plain(path), "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _END_BYTES, 0))
        yield from _objects(file.read(_END_BYTES))


def _objects(content: bytes) -> Iterator[dict[str, Any]]:
    """Lines that are whole; those that are cut off are left out. No number in them is too large for a float."""
    for line in content.splitlines():
        try:
            found = json.loads(line, parse_int=_whole)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(at := found.get("time"), (int, float)) and math.isfinite(at):
            yield found


def _whole(text: str) -> int | float:
    return int(text) if len(text) <= _DIGITS_MOST else math.inf


def _is_of(ring: int, name: str, slot: int) -> bool:
    """Whether the file was begun in these two minutes: by a service that ran before this one."""
    try:
        return int(os.stat(name, dir_fd=ring, follow_symlinks=False).st_mtime // FILE_S) == slot
    except OSError:
        return False


def _write(into: int, name: str, content: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=into)
    with os.fdopen(create_file(into, name), "wb") as file:
        file.write(content)
