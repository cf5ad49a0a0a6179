"""Lines for whoever reads what the service prints (the journal). A reader that has stopped keeps the service waiting for a second, once.

A journal that waits for a dead disk reads nothing; a service that waited for it would look after no job, drain no host, and be ended by
its watchdog. Its log and its hook tell what the journal misses.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

PATIENCE_S = 1.0
_PART_BYTES = select.PIPE_BUF  # a pipe that can be written takes so much without waiting, a socket more


@dataclass(slots=True)
class Lines:
    """One of them for each stream. `missed`: lines since the last one that was taken whole."""

    missed: int = 0
    _cut: bool = False

    def write(self, stream: TextIO, line: str) -> int:
        """How many lines were not taken before this one, which was; 0 otherwise. OSError where nobody will ever read."""
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):  # no file of the system
            stream.write(f"{line}\n")
            stream.flush()
            return 0
        content = (("\n" if self._cut else "") + f"{line}\n").encode("utf-8", "replace")
        # Who has missed one is not waited for again.
        left = written(descriptor, content, 0.0 if self.missed else PATIENCE_S)
        if left:
            self.missed += 1
            self._cut = self._cut or left < len(content)
            return 0
        before, self.missed, self._cut = self.missed, 0, False
        return before


def written(descriptor: int, content: bytes, patience_s: float = PATIENCE_S) -> int:
    """Write it within so long; how many bytes were not taken. OSError."""
    until = time.monotonic() + patience_s
    asked = select.poll()
    asked.register(descriptor, select.POLLOUT)
    while content and asked.poll(max(until - time.monotonic(), 0.0) * 1000.0):
        with suppress(BlockingIOError):  # somebody who writes there as well was quicker
            content = content[os.write(descriptor, content[:_PART_BYTES]) :]
    return len(content)
