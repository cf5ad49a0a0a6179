"""Copy of the stored texts in memory, used while the state folder cannot be written.

Otherwise a user who fills the disk could keep a hanging mount from ever becoming critical, as each
sweep would forget the one before. Valid until the state folder takes a sweep again, or the host
boots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankscope.observer.window.staging import put_file, remove_left_files
from rankscope.probes.base.errors import OutputFailed
from rankscope.probes.base.folders import opened_folder, read_ours
from rankscope.probes.host.fair import group_by, interleave

PLACE = Path("/run/rankscope/sweep")
_FILE = "words.json"
# Limit on memory: a text has some 100 bytes, and a user can have very many waiting processes.
_MOST_BYTES = 1 << 20
Words = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Spare:
    """The copy of the stored texts: a file in a folder of root's on a memory file system."""

    folder: Path

    def read(self, after: float | None) -> Words | None:
        """Read the texts stored since the sweep `after`; None if there are none. Never raises.

        `after`: Unix time of the last sweep that the state folder took; None if unknown.
        """
        try:
            since, rows = json.loads(read_ours(self.folder, [_FILE], 2 * _MOST_BYTES))
            return (
                {(str(identifier), str(key)): str(word) for identifier, key, word in rows} if since == after else None
            )
        except (OSError, OutputFailed, ValueError, TypeError, RecursionError):
            return None

    def write(self, after: float | None, words: Words) -> str:
        """Store the texts, a fair part per check if they are too many; return a note on those left out, '' if none.

        `after`: Unix time of the last sweep that the state folder took; None if unknown. Never raises.
        """
        rows, size = [], 0
        for (identifier, key), word in interleave(group_by(words.items(), lambda item: item[0][0])):
            row = (str(identifier), str(key), str(word))  # a damaged database may return any type
            size += len(json.dumps(row))
            if size > _MOST_BYTES:
                break
            rows.append(row)
        content = json.dumps((after, rows)).encode()
        try:
            with opened_folder(self.folder, make=True) as folder:
                remove_left_files(folder)  # freed only here, or at the next boot
                put_file(folder, _FILE, lambda file: file.write(content), lasting=False)
        except (OSError, OutputFailed):
            return ""  # the failure of the state folder was noted already
        left = len(words) - len(rows)
        return f"{left} of {len(words)} words for the next sweep were too many for {self.folder}" if left else ""

    def clear(self) -> None:
        """Delete the copy, once the state folder has taken a sweep. Never raises."""
        with suppress(OSError, OutputFailed), opened_folder(self.folder) as folder:
            remove_left_files(folder)
            os.unlink(_FILE, dir_fd=folder)
