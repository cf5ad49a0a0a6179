"""A copy of the words in memory, while the state folder takes nothing.

Whoever keeps its disk full would else keep a hanging mount from ever being critical: that it hung at the sweep before would be forgotten.
It counts until the state folder takes a sweep again, or the host boots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankscope.observer.window.staging import put_file, remove_left_files
from rankscope.probes.errors import OutputFailed
from rankscope.probes.fair import group_by, interleave
from rankscope.probes.host.folders import opened_folder, read_ours

PLACE = Path("/run/rankscope/sweep")
_FILE = "words.json"
# Memory that is nobody's to fill: a word is some 100 bytes, and a user can have very many processes that wait.
_MOST_BYTES = 1 << 20
Words = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Spare:
    """A folder of root's, in memory. `after`: the last sweep that the state folder took (Unix time); None where it cannot be read."""

    folder: Path

    def read(self, after: float | None) -> Words | None:
        """The words of the sweeps since that one; None where there is none. Never raises."""
        try:
            since, rows = json.loads(read_ours(self.folder, [_FILE], 2 * _MOST_BYTES))
            return (
                {(str(identifier), str(key)): str(word) for identifier, key, word in rows} if since == after else None
            )
        except (OSError, OutputFailed, ValueError, TypeError, RecursionError):
            return None

    def write(self, after: float | None, words: Words) -> str:
        """Keeps them, some of each check where they are too many. What is to be said of it; '' for nothing. Never raises."""
        rows, size = [], 0
        for (identifier, key), word in interleave(group_by(words.items(), lambda item: item[0][0])):
            row = (str(identifier), str(key), str(word))  # a damaged database gives anything
            size += len(json.dumps(row))
            if size > _MOST_BYTES:
                break
            rows.append(row)
        content = json.dumps((after, rows)).encode()
        try:
            with opened_folder(self.folder, make=True) as folder:
                remove_left_files(folder)  # nobody else does: this memory is given back at the next boot only
                put_file(folder, _FILE, lambda file: file.write(content), lasting=False)
        except (OSError, OutputFailed):
            return ""  # that nothing is remembered was said of the state folder
        left = len(words) - len(rows)
        return f"{left} of {len(words)} words for the next sweep were too many for {self.folder}" if left else ""

    def clear(self) -> None:
        """The state folder took a sweep. Never raises."""
        with suppress(OSError, OutputFailed), opened_folder(self.folder) as folder:
            remove_left_files(folder)
            os.unlink(_FILE, dir_fd=folder)
