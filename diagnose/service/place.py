"""The service's folder: its lock, the black box, and requests of those who may write there (root).

DIR/lock          locked while a service runs; the kernel releases it whichever process is killed, as no child inherits it
DIR/trigger/      a file per request (`rankscope trigger`): the name of the job, empty for all
DIR/events.jsonl  reported events, one object a line; `.1` is the previous file
DIR/owed.json     drains that no hook has taken yet
DIR/blackbox/     observer/watch/blackbox.py
DIR/ledger/       a file per job: ledger/store.py
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankscope.observer.watch.blackbox import BlackBox, write_whole
from rankscope.probes.base.clocks import is_older
from rankscope.probes.base.errors import OutputFailed, RankscopeError
from rankscope.probes.base.folders import create_file, opened_folder

DEFAULT_FOLDER = Path("/var/lib/rankscope/watch")
LOG_BYTES = 8 << 20
_LOG, _LOCK, _TRIGGER = "events.jsonl", "lock", "trigger"
_JOB_BYTES = 1024
_WRITTEN_S = 60.0  # age from which a request counts as incomplete for ever
_locks: set[int] = set()  # descriptors of locks of this process


def _let_go() -> None:
    """Close the locks in a forked child.

    A child that outlives a killed service, to detach its probes, would block the next service.
    """
    for lock in _locks:
        os.close(lock)
    _locks.clear()


os.register_at_fork(after_in_child=_let_go)


class AlreadyWatching(RankscopeError):
    """Another service watches this host."""

    help = "One is enough: `systemctl status rankscope-watch`, or end the other one."
    exit_code = 69


@dataclass(frozen=True, slots=True)
class WatchPlace:
    """The folder of one host's service."""

    folder: Path = DEFAULT_FOLDER

    @property
    def box(self) -> BlackBox:
        """The black box in the folder."""
        return BlackBox(self.folder / "blackbox")

    @property
    def owed(self) -> Path:
        """The file of drains that no hook has taken."""
        return self.folder / "owed.json"

    @property
    def ledger(self) -> Path:
        """The folder of the jobs' ledgers."""
        return self.folder / "ledger"

    @property
    def events(self) -> Path:
        """The log of events, one JSON object a line."""
        return self.folder / _LOG

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder while a service runs. Raises AlreadyWatching, OutputFailed."""
        try:
            with opened_folder(self.folder, make=True) as place:
                lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
        except OSError as error:
            raise OutputFailed(f"{self.folder}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise AlreadyWatching(f"another rankscope watch holds {self.folder}") from error
            _locks.add(lock)
            yield
        finally:
            _locks.discard(lock)
            os.close(lock)

    def is_held(self) -> bool:
        """Tell whether a service runs, by its lock on the folder. Raises OutputFailed."""
        try:
            with contextlib.ExitStack() as held:
                held.enter_context(self.held())
        except AlreadyWatching:
            return True
        return False

    def ask(self, job: str) -> None:
        """Store a request for a look at a job, '' for all jobs. Raises OutputFailed."""
        try:
            with opened_folder(self.folder / _TRIGGER, make=True) as place:
                name = os.urandom(8).hex()
                with os.fdopen(create_file(place, f".{name}"), "wb") as file:
                    file.write(job.encode("utf-8", "replace")[:_JOB_BYTES])
                os.rename(f".{name}", name, src_dir_fd=place, dst_dir_fd=place)
        except OSError as error:
            raise OutputFailed(f"{self.folder}: {error.strerror}") from error

    def asked(self) -> tuple[str, ...]:
        """Return the jobs requested since the last call, '' for all, and delete the requests."""
        if not (self.folder / _TRIGGER).is_dir():
            return ()
        found = []
        with contextlib.suppress(OSError, RankscopeError), opened_folder(self.folder / _TRIGGER) as place:
            for name in sorted(os.listdir(place)):  # noqa: PTH208  by descriptor
                with contextlib.suppress(OSError):  # an invalid file does not block other requests
                    if name.startswith("."):
                        _remove_left(place, name)
                        continue
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    with os.fdopen(os.open(name, flags, dir_fd=place), "rb") as file:
                        # first: a file that cannot be removed would be a request each second
                        os.unlink(name, dir_fd=place)
                        found.append(file.read(_JOB_BYTES).decode("utf-8", "replace"))
        return tuple(dict.fromkeys(found))

    def log(self, content: dict[str, Any]) -> None:
        """Append an event to the log as a line of JSON; a full file is renamed first. Raises OSError, UnsafePlace."""
        line = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with opened_folder(self.folder, make=True) as place:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(_LOG, flags, 0o600, dir_fd=place)
            try:
                if os.fstat(descriptor).st_size + len(line) > LOG_BYTES:
                    os.rename(_LOG, f"{_LOG}.1", src_dir_fd=place, dst_dir_fd=place)
                    os.close(descriptor)
                    descriptor = os.open(_LOG, flags, 0o600, dir_fd=place)
                write_whole(descriptor, line)
            finally:
                os.close(descriptor)


def _remove_left(place: int, name: str) -> None:
    """Remove an incomplete request whose writer was killed, once it is old. Raises OSError."""
    if is_older(os.stat(name, dir_fd=place, follow_symlinks=False).st_mtime, _WRITTEN_S, time.time()):
        os.unlink(name, dir_fd=place)
