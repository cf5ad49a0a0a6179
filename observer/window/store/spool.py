"""Windows that are to be sent: first to this host's disk, then to the store, and tried again until they are there.

    <folder>/<hash of the store>/<key, its / as !>        one file for each window, 0600

The spool is bounded: where it would grow beyond that the oldest go of the job that has most, and the next window that is sent says how
many. What was spooled is removed only when the store has it.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import Loss
from rankscope.observer.window.staging import PARTIAL, partial_name, remove_left
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.container import decode_summary, encode
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import StoreFailed, StoreForbids, open_store, shown_of
from rankscope.observer.window.store.users import by_user
from rankscope.probes.errors import BadData, OutputFailed
from rankscope.probes.host.folders import create_file, opened_folder, take_lock

DEFAULT_FOLDER = Path("/var/lib/rankscope/spool")
MOST_BYTES = 256 << 20  # as the history; some thousand windows of eight ranks
_LOST = "thrown-out"
_SPOOL, _THROWN_OUT = "spool", "thrown_out"  # how a manifest says it
_LOCK = "lock"
_SLASH = "!"  # is in no key
SPREAD_S = 2.0  # hosts observe the same window and end it together
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was sent (keys), what waits still and why."""

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
        """Make the folder. OutputFailed where a window could not be put there."""
        with self._opened():
            pass

    def add(self, window: Window) -> str:
        """Keep one window until it is sent; its key. OutputFailed."""
        with self._opened() as place:
            lost = self._lost(place)
            if lost:
                loss = Loss(_SPOOL, _THROWN_OUT, lost)
                manifest = replace(window.manifest, losses=(*window.manifest.losses, loss))
                window = replace(window, manifest=manifest)
            key = key_of(by_user(window).manifest)
            data = encode([window])
            self._make_room(place, len(data), lost)
            _write(place, key.replace("/", _SLASH), data)
        return key

    def deliver(
        self,
        within_s: float,
        pause: Callable[[float], None] = time.sleep,
        chance: random.Random | None = None,
        spread_s: float = SPREAD_S,
    ) -> Delivery:
        """Send what waits, the oldest first; the first after a pause of up to `spread_s`, by chance. What fails is tried again for
        `within_s`, after pauses that grow and that chance shortens: a store that was away is not met by all hosts at once. What does
        not go stays."""
        chance = chance or random.Random()
        sent: list[str] = []
        until = time.monotonic() + within_s
        longest, trouble = _FIRST_PAUSE_S, ""
        pause(chance.uniform(0, min(spread_s, within_s)))
        with self._opened(alone=False) as place:  # it may wait for long, and what is sent twice is one object
            waiting = _waiting(place)
            while waiting:
                name = waiting[0]
                try:
                    objects.put(open_store(self.uri), name.replace(_SLASH, "/"), _read(place, name))
                except StoreForbids as error:
                    trouble = str(error)
                    break
                except StoreFailed as error:
                    trouble = str(error)
                    if time.monotonic() + longest > until:
                        break
                    pause(chance.uniform(0, longest))
                    longest = min(2 * longest, _LONGEST_PAUSE_S)
                    continue
                except FileNotFoundError:  # another observer's, which made room
                    waiting.pop(0)
                    continue
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=place)
                sent.append(name.replace(_SLASH, "/"))
                waiting.pop(0)
                trouble = ""
        return Delivery(tuple(sent), len(waiting), trouble)

    @contextmanager
    def _opened(self, alone: bool = True) -> Iterator[int]:
        """The folder. `alone`: two observers of one host do not throw out and count at one moment."""
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
        """How many windows were thrown out since the last one said so."""
        with suppress(OSError, ValueError):
            return int(_read(place, _LOST))
        return 0

    def _make_room(self, place: int, size_bytes: int, told: int) -> None:
        """Throw out the oldest until so much fits, of the job with most, and count them; of those counted `told` are told by the window
        that is to come."""
        sizes = {name: os.stat(name, dir_fd=place, follow_symlinks=False).st_size for name in _waiting(place)}
        lost, over = 0, sum(sizes.values()) + size_bytes - self.most_bytes
        held = Counter[str]()
        for name, size in sizes.items():
            held[_job_of(name)] += size
        while sizes and over > 0:
            name = max(sizes, key=lambda each: held[_job_of(each)])  # of one job the first, which is the oldest
            lost += 1 + _told_by(place, name)
            os.unlink(name, dir_fd=place)
            held[_job_of(name)] -= sizes[name]
            over -= sizes.pop(name)
        if lost:
            _write(place, _LOST, str(lost).encode())
        elif told:
            os.unlink(_LOST, dir_fd=place)


def _job_of(name: str) -> str:
    return name.partition(_SLASH)[0]


def _told_by(place: int, name: str) -> int:
    """How many windows that were thrown out this one tells of: it goes too."""
    with suppress(OSError, BadData):
        said = decode_summary(_read(place, name)).manifests
        return sum(
            loss.count for about in said for loss in about.losses if (loss.source, loss.name) == (_SPOOL, _THROWN_OUT)
        )
    return 0


def _waiting(place: int) -> list[str]:
    """Names of what waits, the oldest first."""
    names = [name for name in os.listdir(place) if name.endswith(".parquet") and not name.startswith(PARTIAL)]
    return sorted(names, key=lambda name: (os.stat(name, dir_fd=place, follow_symlinks=False).st_mtime_ns, name))


def _read(place: int, name: str) -> bytes:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place), "rb") as file:
        return file.read()


def _write(place: int, name: str, data: bytes) -> None:
    staging = partial_name()
    try:
        with os.fdopen(create_file(place, staging), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(staging, name, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        with suppress(OSError):
            os.unlink(staging, dir_fd=place)
        raise
