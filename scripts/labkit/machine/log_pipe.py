"""A rank's output through a pipe, as container runtimes take it: a thread of the lab reads it and writes the log."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from pathlib import Path

# Room for two reports: enough that the reader never idles, little enough that the rank soon waits for a slow reader.
PIPE_BYTES = 32 << 10
_CHUNK = 4096
_REPORT = re.compile(rb"\.{8,}\n?")


class Shipper:
    """Reads as fast as the rank writes; with `pace_s` (seconds per byte) no faster than that."""

    def __init__(self, log: Path) -> None:
        self._exit, self.entrance = os.pipe()
        fcntl.fcntl(self.entrance, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._log = log
        self.pace_s = 0.0
        self._thread = threading.Thread(target=self._ship, daemon=True)
        self._thread.start()

    def _ship(self) -> None:
        with self._log.open("wb") as log:
            due = time.monotonic()
            while chunk := os.read(self._exit, _CHUNK):
                log.write(_REPORT.sub(b"", chunk))  # the filler of the reports need not be kept
                log.flush()
                # Each chunk has a due time, so that sleeping too long once is made up for; idle time is not saved up.
                due = max(due, time.monotonic()) + len(chunk) * self.pace_s
                time.sleep(max(0.0, due - time.monotonic()))
        os.close(self._exit)

    def close(self) -> None:
        """No more will be written; the thread ends when the last writer has gone."""
        os.close(self.entrance)
        self.pace_s = 0.0
