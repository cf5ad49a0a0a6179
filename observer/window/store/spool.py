"""Spool windows on this host's disk and send them to the store until it has them.

 <folder>/<hash of the store>/<key, its / as !>        one file for each window, 0600

The spool is bounded: beyond that the oldest windows of the largest job are dropped, and the next
window sent reports how many. A spooled window is removed only when the store has it.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import Loss
from rankscope.observer.window.staging import PARTIAL, put_file, remove_left
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.container import decode_summary, encode
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import InTheWay, StoreFailed, StoreForbids, open_store, shown_of
from rankscope.observer.window.store.users import by_user
from rankscope.probes.base.clocks import age_order
from rankscope.probes.base.errors import BadData, OutputFailed
from rankscope.probes.base.folders import UnsafePlace, opened_folder, take_lock

DEFAULT_FOLDER = Path("/var/lib/rankscope/spool")
MOST_BYTES = 256 << 20  # as the history; some thousand windows of eight ranks
_LOST = "thrown-out"
_SPOOL, _THROWN_OUT = "spool", "thrown_out"  # their names in a manifest
_LOCK = "lock"
_SLASH = "!"  # occurs in no key
SPREAD_S = 2.0  # hosts observe the same window and end it together
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_FAILED_MOST = 3  # failures in a row of one job while others' windows succeed: the store is not down
_REFUSED_MOST = 16  # in a row: everything is forbidden, and thousands of requests would be pointless


@dataclass(frozen=True, slots=True)
class Delivery:
    """The keys sent, the number still waiting, and why."""

    sent: tuple[str, ...]
    waiting: int
    trouble: str


class Spool:
    """The windows of this host that wait for one store."""

    def __init__(self, folder: Path, uri: str, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder / hashlib.sha256(shown_of(uri).encode()).hexdigest()[:16]
        self.uri = uri
        self.most_bytes = most_bytes

    def prepare(self) -> None:
        """Create the folder. Raises OutputFailed where no window could be stored there."""
        with self._opened():
            pass

    def add(self, window: Window) -> str:
        """Store one window until it is sent; return its key. Raises OutputFailed."""
        with self._opened() as place:
            lost = self._lost(place)
            if lost:
                loss = Loss(_SPOOL, _THROWN_OUT, lost)
                manifest = replace(window.manifest, losses=(*window.manifest.losses, loss))
                window = replace(window, manifest=manifest)
            key = key_of(by_user(window).manifest)
            data = encode([window])
            self._make_room(place, len(data), lost)
            put_file(place, key.replace("/", _SLASH), lambda file: file.write(data))
        return key

    def deliver(
        self,
        within_s: float,
        pause: Callable[[float], None] = time.sleep,
        chance: random.Random | None = None,
        spread_s: float = SPREAD_S,
    ) -> Delivery:
        """Send waiting windows, of each job the oldest first, the jobs in turn.

        The first after a random pause of up to `spread_s`. While the store is unreachable, retry
        for `within_s` with growing random pauses, so that not all hosts return at once. Windows
        that cannot be sent or read do not block others, and remain.
        """
        chance = chance or random.Random()
        sent: list[str] = []
        failed = Counter[str]()  # by job, since one of its windows was sent
        later: deque[deque[str]] = deque()  # jobs with a failure: after all others
        until = time.monotonic() + within_s
        longest, trouble, stay, refused = _FIRST_PAUSE_S, "", 0, 0
        pause(chance.uniform(0, min(spread_s, within_s)))
        # it may wait for long, and what is sent twice is one object
        with self._opened(alone=False) as place:
            turns = _turns(place, chance)
            while refused < _REFUSED_MOST and (turns or later):
                if not turns:
                    turns, later = later, turns
                mine = turns.popleft()
                name = mine.popleft()
                job = _job_of(name)
                try:
                    data = _read(place, name)
                    objects.put(open_store(self.uri), name.replace(_SLASH, "/"), data)
                except FileNotFoundError:  # another observer sent it, or dropped it to make room
                    pass
                except (UnsafePlace, InTheWay) as error:  # something else has its name, or its job's
                    trouble, stay = str(error), stay + 1
                except StoreForbids as error:  # everything, or one prefix
                    trouble, stay, refused = str(error), stay + 1, refused + 1
                except StoreFailed as error:
                    trouble = str(error)
                    failed[job] += 1
                    mine.appendleft(name)
                    if sent and failed[job] >= _FAILED_MOST:
                        stay += len(mine)
                        continue
                    later.append(mine)
                    if time.monotonic() + longest > until:
                        break
                    pause(chance.uniform(0, longest))
                    longest = min(2 * longest, _LONGEST_PAUSE_S)
                    continue
                except OSError as error:
                    trouble, stay = f"a window in the spool cannot be read: {error.strerror}", stay + 1
                else:
                    with suppress(OSError):  # then it is sent again, as the same object
                        os.unlink(name, dir_fd=place)
                    sent.append(name.replace(_SLASH, "/"))
                    failed[job] = refused = 0
                if mine:
                    turns.append(mine)
        waiting = stay + sum(map(len, (*turns, *later)))
        return Delivery(tuple(sent), waiting, trouble if waiting else "")

    @contextmanager
    def _opened(self, alone: bool = True) -> Iterator[int]:
        """Open the folder, created if missing, and yield its descriptor. Raises OutputFailed.

        `alone`: lock it, so that two observers do not drop and count at the same time.
        """
        try:
            with opened_folder(self.folder, make=True) as place:
                lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
                try:
                    if alone and not take_lock(lock):
                        raise OutputFailed(f"the spool {self.folder} is locked by another process")
                    remove_left(place)
                    yield place
                finally:
                    os.close(lock)
        except OSError as error:
            raise OutputFailed(f"cannot spool in {self.folder}: {error.strerror or error}") from error

    def _lost(self, place: int) -> int:
        """Return the number of windows dropped since it was last reported."""
        with suppress(OSError, ValueError):
            return int(_read(place, _LOST))
        return 0

    def _make_room(self, place: int, size_bytes: int, told: int) -> None:
        """Drop the oldest windows of the largest job until there is room, and count them.

        `told`: already counted ones, which the next window reports.
        """
        sizes = dict(_waiting(place))
        lost, over = 0, sum(sizes.values()) + size_bytes - self.most_bytes
        held = Counter[str]()
        for name, size in sizes.items():
            held[_job_of(name)] += size
        while sizes and over > 0:
            # of one job the first, which is the oldest
            name = max(sizes, key=lambda each: held[_job_of(each)])
            told_by_it = _drops_reported_by(place, name)
            with suppress(FileNotFoundError):  # it was sent meanwhile
                os.unlink(name, dir_fd=place)
                lost += 1 + told_by_it
            held[_job_of(name)] -= sizes[name]
            over -= sizes.pop(name)
        if lost:
            put_file(place, _LOST, lambda file: file.write(str(lost).encode()))
        elif told:
            with suppress(FileNotFoundError):
                os.unlink(_LOST, dir_fd=place)


def _job_of(name: str) -> str:
    """Return the job's part of a spooled file's name, `job=…`."""
    return name.partition(_SLASH)[0]


def _drops_reported_by(place: int, name: str) -> int:
    """Return the number of dropped windows that this one reports, which is lost with it."""
    with suppress(OSError, BadData):
        said = decode_summary(_read(place, name)).manifests
        return sum(
            loss.count for about in said for loss in about.losses if (loss.source, loss.name) == (_SPOOL, _THROWN_OUT)
        )
    return 0


def _waiting(place: int) -> list[tuple[str, int]]:
    """List waiting windows with sizes in bytes, oldest first; those sent meanwhile by another
    observer are left out.
    """
    found, now_s = [], time.time()
    for name in os.listdir(place):
        if name.endswith(".parquet") and not name.startswith(PARTIAL):
            with suppress(FileNotFoundError):
                about = os.stat(name, dir_fd=place, follow_symlinks=False)
                found.append((age_order(about.st_mtime, now_s), about.st_mtime_ns, name, about.st_size))
    return [(name, size_bytes) for _, _, name, size_bytes in sorted(found)]


def _turns(place: int, chance: random.Random) -> deque[deque[str]]:
    """Group waiting windows by job, oldest first; the order of jobs starts at a random one.

    So if many are refused, not always the same ones are tried.
    """
    of_job: dict[str, deque[str]] = {}
    for name, _ in _waiting(place):
        of_job.setdefault(_job_of(name), deque()).append(name)
    turns = deque(of_job.values())
    turns.rotate(chance.randrange(max(len(turns), 1)))
    return turns


def _read(place: int, name: str) -> bytes:
    """Read a file in the spool's open folder, following no link. Raises OSError."""
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place), "rb") as file:
        return file.read()
