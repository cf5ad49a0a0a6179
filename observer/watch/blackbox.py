"""The black box: the last minutes of tier 0 in a bounded ring on disk, frozen beside a hang or a death before anybody restarts the job.

    DIR/ring/<0…5>.jsonl    one line per flush, a file per two minutes, the oldest written over. A user may fill half of what the others
                            leave of a file: nobody's many ranks keep out others' lines
    DIR/frozen/<name>/      the ring as it was, of other users its end, and why.json; `FROZEN_MOST`, and no more than `FROZEN_BYTES` in
                            all: of whose user, and of these of whose job, there is most the oldest goes; of one user no more than
                            that in the minutes of a ring. Nobody's dying jobs drive out others' evidence

Lines are appended, and a reader leaves out what is cut off: whoever is killed loses the last seconds at most. What is frozen is there whole
or not at all. A disk that is full costs the box, never the service.
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
from rankscope.probes.host.clocks import age_order
from rankscope.probes.host.folders import create_file, open_plain, opened_folder, read_plain

FILES = 6
FILE_S = 120.0
FILE_BYTES = 4 << 20  # half for one user: 64 ranks with 5 steps a second write 1.5 MB in two minutes
FROZEN_MOST = 16
FROZEN_BYTES = 64 << 20
_OF_OTHERS_BYTES = 2 << 20  # in what is frozen of one user
_READ_MOST = 2 * FILE_BYTES
_DIGITS_MOST = 18
_DRAFT = ".draft"
_STAMP = "%Y%m%dT%H%M%SZ"
_END_BYTES = 256 << 10  # 20 s of 64 ranks with 5 steps a second, ten minutes of two


@dataclass(slots=True)
class BlackBox:
    """One host's. Writing never raises but OSError and UnsafePlace (an OutputFailed)."""

    folder: Path
    _slot: int = -1
    _held: Counter[str] = field(default_factory=Counter)  # bytes of the file by user; '' of who ran before us
    _frozen: OfUsers[tuple[float, ...]] = field(default_factory=OfUsers)  # when
    lost_lines: int = 0

    def append(self, content: dict[str, Any], now: float, user: str = "") -> None:
        """One line, of a job of `user`; `now` in Unix time."""
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
        """Copy the ring aside; `user`: whose job it is. The folder that it is in."""
        stamp = time.strftime(_STAMP, time.gmtime(now))
        whose = f"+{safe_name(user)}" if user else ""
        place = self.folder / "frozen" / f"{stamp}-{safe_name(job)[:80]}{whose}"
        draft = place.with_name(_DRAFT)
        shutil.rmtree(draft, ignore_errors=True)  # of who was killed
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
        """Whether there may be one more of this user's, which is counted; `now_s` of CLOCK_MONOTONIC."""
        mine = self._frozen.get(user, ())
        if len(mine) == FROZEN_MOST and now_s - mine[0] < FILES * FILE_S:
            return False
        self._frozen.keep(user, (*mine, now_s)[-FROZEN_MOST:])
        return True

    def add(self, frozen: Path, name: str, content: bytes) -> None:
        """Another file into what is frozen: a verdict that came later."""
        with opened_folder(frozen) as into:
            _write(into, name, content)

    def _within_bounds(self, newest: Path, now: float) -> None:
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
    """User and job, the user's, as the name of a frozen folder has them: <time>-<job>+<user>."""
    job, _, user = path.name.partition("-")[2].partition("+")
    return f"+{user}", f"{job}+{user}"


def _frozen_at(path: Path) -> float:
    """Unix time, by its name; before all others where that says none."""
    with contextlib.suppress(ValueError):
        return calendar.timegm(time.strptime(path.name.partition("-")[0], _STAMP))
    return 0.0


def frozen_in(folder: Path) -> list[Path]:
    """What is frozen, oldest first."""
    try:
        found = (path for path in (folder / "frozen").iterdir() if path.is_dir() and not path.is_symlink())
        return sorted(path for path in found if path.name != _DRAFT)
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
        newest = _newest_first(folder / "ring")[:2]
        return sorted((line for path in newest for line in _end_of(path)), key=lambda one: float(one["time"]))
    return []


def _newest_first(ring: Path) -> list[Path]:
    now_s = time.time()
    return sorted(ring.glob("*.jsonl"), key=lambda path: age_order(path.stat().st_mtime, now_s), reverse=True)


def _mark(user: str) -> bytes:
    """How a line of this user's begins: whose it is can be told without taking it apart."""
    return b'{"user":' + json.dumps(user).encode() + b"," if user else b"{"


def _of_user(content: bytes, user: str, room: int) -> tuple[bytes, int]:
    """The lines of this user, and of others the last ones for which there is room; what is left of it."""
    mark, kept = _mark(user), []
    for line in reversed(content.splitlines(keepends=True)):
        if not line.startswith(mark):
            room -= len(line)
            if room < 0:
                continue
        kept.append(line)
    return b"".join(reversed(kept)), room


def write_whole(descriptor: int, line: bytes) -> None:
    """A line at the end of a file, or nothing of it: half a line would take the next one with it. OSError."""
    written = os.write(descriptor, line)
    if written < len(line):
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
