"""Print the service's lines (to the journal). A reader that has stopped delays the service by a second, once.

A journal that waits for a dead disk reads nothing; a service that waited for it would watch no job,
drain no host, and be killed by its watchdog. Its log and its hook report what the journal misses.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

PATIENCE_S = 1.0
# a pipe ready for writing accepts this much without blocking, a socket more
_PART_BYTES = select.PIPE_BUF


@dataclass(slots=True)
class Lines:
    """Writer for one stream. `missed`: lines lost since the last one written whole."""

    missed: int = 0
    _cut: bool = False

    def write(self, stream: TextIO, line: str) -> int:
        """Write a line; return the number of lines lost before it if it was written, else 0.

        Raises OSError if no reader is left.
        """
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):  # no file of the operating system
            stream.write(f"{line}\n")
            stream.flush()
            return 0
        content = (("\n" if self._cut else "") + f"{line}\n").encode("utf-8", "replace")
        # Do not wait again for a reader that has missed a line.
        left = written(descriptor, content, 0.0 if self.missed else PATIENCE_S)
        if left:
            self.missed += 1
            self._cut = self._cut or left < len(content)
            return 0
        before, self.missed, self._cut = self.missed, 0, False
        return before


def written(descriptor: int, content: bytes, patience_s: float = PATIENCE_S) -> int:
    """Write with a time limit; return the number of bytes not written. Raises OSError."""
    until = time.monotonic() + patience_s
    asked = select.poll()
    asked.register(descriptor, select.POLLOUT)
    while content and asked.poll(max(until - time.monotonic(), 0.0) * 1000.0):
        with suppress(BlockingIOError):  # another writer was quicker
            content = content[os.write(descriptor, content[:_PART_BYTES]) :]
    return len(content)
