"""The black box: the last minutes of tier 0 in a bounded ring on disk, frozen on a hang or a death.

    DIR/ring/<0…5>.jsonl    one line per flush, a file per two minutes, the oldest overwritten. A user may fill half of what the others
                            leave of a file: nobody's many ranks crowd out others' lines
    DIR/frozen/<name>/      a copy of the ring, of other users its end, and why.json; at most `FROZEN_MOST`, and `FROZEN_BYTES` in
                            all: the user with most, and of his jobs the one with most, loses its oldest; one user gets no more than
                            that within the minutes of a ring. Nobody's dying jobs evict others' evidence

Lines are appended, and readers skip truncated ones: a killed process loses the last seconds at
most. A frozen copy is complete or absent. A full disk disables the box, never the service.
"""

from __future__ import annotations

import calendar
import contextlib
import errno
import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.observer.watch.users import OfUsers
from rankscope.observer.window.staging import safe_name
from rankscope.probes.base.clocks import age_order
from rankscope.probes.base.folders import create_file, open_plain, opened_folder, read_plain

FILES = 6
FILE_S = 120.0
FILE_BYTES = 4 << 20  # half for one user: 64 ranks with 5 steps a second write 1.5 MB in two minutes
FROZEN_MOST = 16
FROZEN_BYTES = 64 << 20
_OF_OTHERS_BYTES = 2 << 20  # in a frozen copy of one user
_READ_MOST = 2 * FILE_BYTES
_DIGITS_MOST = 18
_DRAFT = ".draft"
_STAMP = "%Y%m%dT%H%M%SZ"
_END_BYTES = 256 << 10  # 20 s of 64 ranks with 5 steps a second, ten minutes of two


@dataclass(slots=True)
class BlackBox:
    """The black box of one host. Writing raises only OSError and UnsafePlace (an OutputFailed)."""

    folder: Path
    _slot: int = -1
    # bytes of the file by user; '' for an earlier process
    _held: Counter[str] = field(default_factory=Counter)
    _frozen: OfUsers[tuple[float, ...]] = field(default_factory=OfUsers)  # times
    lost_lines: int = 0

    def append(self, content: dict[str, Any], now: float, user: str = "") -> None:
        """Append one line about a job of `user` to the ring's current file; `now` in Unix time.

        Beyond the user's part of the file the line is dropped and counted in `lost_lines`.
        """
        slot = int(now // FILE_S)
        line = _mark(user) + json.dumps(content, separators=(",", ":")).encode()[1:] + b"\n"
        with opened_folder(self.folder / "ring", make=True) as ring:
            name = f"{slot % FILES}.jsonl"
            fresh = slot != self._slot and not _is_of(ring, name, slot)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
            descriptor = os.open(name, flags, 0o600, dir_fd=ring)
            try:
                if slot != self._slot:
                    self._slot, self._held = slot, Counter({"": os.fstat(descriptor).st_size})
                if 2 * (self._held[user] + len(line)) > FILE_BYTES - self._held.total() + self._held[user]:
                    self.lost_lines += 1
                    return
                write_whole(descriptor, line)
                self._held[user] += len(line)
            finally:
                os.close(descriptor)

    def freeze(self, job: str, why: dict[str, Any], now: float, user: str = "") -> Path:
        """Copy the ring to a new folder and return it; of other users' lines only the last.

        `why`: content of why.json; `user`: the job's owner; `now` in Unix time. Older copies are
        removed where there are too many.
        """
        stamp = time.strftime(_STAMP, time.gmtime(now))
        whose = f"+{safe_name(user)}" if user else ""
        place = self.folder / "frozen" / f"{stamp}-{safe_name(job)[:80]}{whose}"
        draft = place.with_name(_DRAFT)
        shutil.rmtree(draft, ignore_errors=True)  # of a killed process
        try:
            with opened_folder(draft, make=True) as into:
                _write(into, "why.json", json.dumps(why, indent=2).encode())
                room = _OF_OTHERS_BYTES
                for path in _newest_first(self.folder / "ring"):
                    content, room = _of_user(_content(path), user, room)
                    _write(into, path.name, content)
            shutil.rmtree(place, ignore_errors=True)  # of the same job in the same second
            draft.rename(place)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._within_bounds(place, now)
        return place

    def may_freeze(self, user: str, now_s: float) -> bool:
        """Tell whether this user may freeze once more, and count it; `now_s` of CLOCK_MONOTONIC."""
        mine = self._frozen.get(user, ())
        if len(mine) == FROZEN_MOST and now_s - mine[0] < FILES * FILE_S:
            return False
        self._frozen.keep(user, (*mine, now_s)[-FROZEN_MOST:])
        return True

    def add(self, frozen: Path, name: str, content: bytes) -> None:
        """Add a file to a frozen copy: a verdict that came later."""
        with opened_folder(frozen) as into:
            _write(into, name, content)

    def _within_bounds(self, newest: Path, now: float) -> None:
        """Remove frozen copies until their number and bytes are within the limits; never `newest`.

        The oldest goes, of the user with most and of that user's job with most. `now`: Unix time.
        """
        there = sorted(frozen_in(self.folder), key=lambda path: age_order(_frozen_at(path), now))
        kept = {path: sum(each.stat().st_size for each in path.iterdir()) for path in there}
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
    """Parse a frozen folder's name, <time>-<job>+<user>, to ('+<user>', '<job>+<user>')."""
    job, _, user = path.name.partition("-")[2].partition("+")
    return f"+{user}", f"{job}+{user}"


def _frozen_at(path: Path) -> float:
    """Parse the Unix time from a frozen folder's name; 0 where there is none."""
    with contextlib.suppress(ValueError):
        return calendar.timegm(time.strptime(path.name.partition("-")[0], _STAMP))
    return 0.0


def frozen_in(folder: Path) -> list[Path]:
    """List the frozen copies, oldest first."""
    try:
        found = (path for path in (folder / "frozen").iterdir() if path.is_dir() and not path.is_symlink())
        return sorted(path for path in found if path.name != _DRAFT)
    except OSError:
        return []


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a ring or a frozen copy in order of time, without truncated ones."""
    found: list[dict[str, Any]] = []
    for path in folder.glob("*.jsonl"):
        found += _objects(_content(path))
    yield from sorted(found, key=lambda one: float(one["time"]))


def latest_lines(folder: Path) -> list[dict[str, Any]]:
    """Read the last minutes of a ring, oldest first: the ends of its two newest files. For frequent
    readers.
    """
    with contextlib.suppress(OSError):
        newest = _newest_first(folder / "ring")[:2]
        return sorted((line for path in newest for line in _end_of(path)), key=lambda one: float(one["time"]))
    return []


def _newest_first(ring: Path) -> list[Path]:
    """List the ring's files by modification time, newest first; those dated in the future last."""
    now_s = time.time()
    return sorted(ring.glob("*.jsonl"), key=lambda path: age_order(path.stat().st_mtime, now_s), reverse=True)


def _mark(user: str) -> bytes:
    """Return the beginning of a user's lines, which identifies the user without parsing."""
    return b'{"user":' + json.dumps(user).encode() + b"," if user else b"{"


def _of_user(content: bytes, user: str, room: int) -> tuple[bytes, int]:
    """Select this user's lines, and as many last lines of others as fit; return them with the room left.

    `room`: bytes for others' lines; negative when used up.
    """
    mark, kept = _mark(user), []
    for line in reversed(content.splitlines(keepends=True)):
        if not line.startswith(mark):
            room -= len(line)
            if room < 0:
                continue
        kept.append(line)
    return b"".join(reversed(kept)), room


def write_whole(descriptor: int, line: bytes) -> None:
    """Append a whole line to a file, or nothing: half a line would spoil the next one. Raises
    OSError.
    """
    written = os.write(descriptor, line)
    if written < len(line):
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _content(path: Path) -> bytes:
    """Read a file of the ring; empty where unreadable, so that it hides no other one."""
    try:
        return read_plain(path, _READ_MOST)
    except OSError:
        return b""


def _end_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines in the last `_END_BYTES` of a file of the ring. Raises OSError."""
    with os.fdopen(open_plain(path), "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _END_BYTES, 0))
        yield from _objects(file.read(_END_BYTES))


def _objects(content: bytes) -> Iterator[dict[str, Any]]:
    """Parse the lines that are JSON objects with a finite `time`; truncated and other lines are left out.

    No number in them is too large for a float.
    """
    for line in content.splitlines():
        try:
            found = json.loads(line, parse_int=_whole)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(at := found.get("time"), (int, float)) and math.isfinite(at):
            yield found


def _whole(text: str) -> int | float:
    """Parse a whole number; infinity where it has more than `_DIGITS_MOST` characters."""
    return int(text) if len(text) <= _DIGITS_MOST else math.inf


def _is_of(ring: int, name: str, slot: int) -> bool:
    """Tell whether this file of the ring was last written in the two minutes number `slot` since 1970.

    Then an earlier process began it. `ring`: descriptor of the folder.
    """
    try:
        return int(os.stat(name, dir_fd=ring, follow_symlinks=False).st_mtime // FILE_S) == slot
    except OSError:
        return False


def _write(into: int, name: str, content: bytes) -> None:
    """Write a new file into an open folder, in place of one of that name."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=into)
    with os.fdopen(create_file(into, name), "wb") as file:
        file.write(content)
