"""The ledgers of one host on disk: `<state>/ledger/<24 hex>.json`, 0600, each written whole or not at all.

A file is at most `FILE_BYTES` long, and there are at most `FILES` of them, `FILES_EACH` of one
user; beyond that the user with most loses the one that was written longest ago. What somebody else
could have written, or what is no ledger, is not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankscope.diagnose.service.ledger.as_json import from_json, to_json
from rankscope.diagnose.service.ledger.entry import Ledger
from rankscope.observer.window.staging import put_file, remove_left_files
from rankscope.probes.base.errors import BadData, OutputFailed
from rankscope.probes.base.folders import opened_folder, read_ours
from rankscope.probes.base.strict_json import parsed

FILE_BYTES = 64 << 10
FILES, FILES_EACH = 256, 64
_NAME = re.compile(r"[0-9a-f]{24}\.json")


@dataclass(slots=True)
class Store:
    """The folder of the ledgers' files.

    `host`: name of this host, written into each file; `_users`: user by file name, the file written longest ago
    first; None until the first write.
    """

    folder: Path
    host: str
    _users: dict[str, str] | None = None

    def write(self, ledger: Ledger) -> None:
        """Write one ledger, and remove files above the limits. Raises OSError, OutputFailed."""
        content = json.dumps(to_json(ledger, self.host), separators=(",", ":"), allow_nan=False).encode()
        if len(content) > FILE_BYTES:
            raise OutputFailed(f"the ledger of {ledger.job} has {len(content)} bytes")
        name = name_of(ledger)
        with opened_folder(self.folder, make=True) as place:
            if self._users is None:
                self._users = self._found(place)
            put_file(place, name, lambda file: file.write(content), lasting=False)
            self._users.pop(name, None)
            self._users[name] = ledger.user
            _keep_within_bounds(place, self._users)

    def forget(self, ledger: Ledger) -> None:
        """Delete the file of a ledger that goes on under another name. Raises OSError, OutputFailed."""
        name = name_of(ledger)
        with opened_folder(self.folder) as place, suppress(FileNotFoundError):
            os.unlink(name, dir_fd=place)
        if self._users is not None:
            self._users.pop(name, None)

    def _found(self, place: int) -> dict[str, str]:
        """Return the user by name of each file, the oldest first, and delete files that are no ledgers.

        `place`: descriptor of the folder.
        """
        remove_left_files(place)
        users = {name: ledger.user for name, ledger in self._all()}
        for name in os.listdir(place):
            if _NAME.fullmatch(name) and name not in users:
                with suppress(OSError):
                    os.unlink(name, dir_fd=place)
        return dict(sorted(users.items(), key=lambda row: _written(place, row[0])))

    def read(self) -> list[Ledger]:
        """Read all ledgers, the latest `until` first. Damaged ones are left out."""
        found = [ledger for _, ledger in self._all()]
        return sorted(found, key=lambda one: -one.until)

    def _all(self) -> Iterator[tuple[str, Ledger]]:
        """Yield name and ledger of each file; those that cannot be read or are no ledger are skipped."""
        if not self.folder.is_dir():
            return
        with opened_folder(self.folder) as place:
            names = [name for name in os.listdir(place) if _NAME.fullmatch(name)]  # noqa: PTH208
        for name in sorted(names)[: 2 * FILES]:
            with suppress(OSError, OutputFailed, BadData, ValueError, RecursionError):
                ledger = from_json(parsed(read_ours(self.folder, [name], FILE_BYTES)))
                if name == name_of(ledger):
                    yield name, ledger


def _keep_within_bounds(place: int, users: dict[str, str]) -> None:
    """Remove the oldest files of the user with most, while there are too many; never the newest.

    `place`: descriptor of the folder; `users`: user by file name, the oldest first; it is updated.
    """
    held = Counter(users.values())
    newest = next(reversed(users))
    while len(users) > FILES or max(held.values()) > FILES_EACH:
        most = max(held, key=lambda user: held[user])
        gone = next((name for name, user in users.items() if user == most and name != newest), None)
        if gone is None:
            return
        with suppress(OSError):
            os.unlink(gone, dir_fd=place)
        del users[gone]
        held[most] -= 1


def name_of(ledger: Ledger) -> str:
    """Return the name of a ledger's file: a hash of its job, its user and its begin."""
    key = "\0".join((ledger.user, ledger.job, f"{int(ledger.began)}"))
    return f"{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:24]}.json"


def _written(place: int, name: str) -> float:
    """Return when a file was last written, Unix time; 0 if it is missing or no regular file."""
    try:
        found = os.stat(name, dir_fd=place, follow_symlinks=False)
    except OSError:
        return 0.0
    return found.st_mtime if stat.S_ISREG(found.st_mode) else 0.0
