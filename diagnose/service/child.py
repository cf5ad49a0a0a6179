"""A child process of the service that answers requests, one JSON object per line, and ends with it.

For work that may block or needs threads: the service must not block, and a process that forks must
have one thread.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankscope.diagnose.service.signals import as_usual, end, end_with
from rankscope.diagnose.text import clean
from rankscope.probes.mapped.reader import READER


@dataclass(slots=True)
class Child:
    """A child process that runs `serve` with its end of a socket; the first `send` starts it, also after it has ended.

    `most_bytes`: limit of unsent requests, and of one answer.
    """

    serve: Callable[[socket.socket], None]
    most_bytes: int = 8 << 20
    _pid: int = 0
    _line: socket.socket | None = None
    _read: bytes = b""
    _unsent: bytes = b""

    @property
    def runs(self) -> bool:
        """True while a child is started and not closed; one that died is noticed by the next `send` or `next`."""
        return self._line is not None

    def send(self, content: Any) -> bool:
        """Queue a request as a line of JSON; return False if it failed, and the child is ended then.

        Never blocks: what the socket does not accept is sent by the next call. Above `most_bytes` unsent it
        fails.
        """
        try:
            if self._line is None:
                self._begin()
            asked = json.dumps(content).encode() + b"\n"
            if len(self._unsent) + len(asked) <= self.most_bytes:
                self._unsent += asked
                self._flush()
                return True
        except OSError:
            pass
        self.close()
        return False

    def _flush(self) -> None:
        """Send queued bytes as far as the socket accepts them without blocking. Raises OSError."""
        while self._line is not None and self._unsent:
            try:
                self._unsent = self._unsent[self._line.send(self._unsent) :]
            except BlockingIOError:
                return

    def next(self) -> Any | None:
        """Send what is queued; return the next answer, None if there is none. Never blocks. Raises ValueError: no JSON.

        If the child has ended, or its answer exceeds `most_bytes`, it is closed.
        """
        try:
            self._flush()
        except OSError:
            self.close()
        while self._line is not None and b"\n" not in self._read:
            try:
                part = self._line.recv(1 << 16)
            except BlockingIOError:
                return None
            except OSError:
                part = b""
            if not part or len(self._read) > self.most_bytes:
                self.close()
                return None
            self._read += part
        line, mark, rest = self._read.partition(b"\n")
        if not mark:
            return None
        self._read = rest
        return json.loads(line)

    def close(self) -> None:
        """Kill the child, if there is one, and drop unsent requests and unread answers."""
        if self._line is not None:
            self._line.close()
            self._line, self._read, self._unsent = None, b"", b""
        if self._pid:
            end(self._pid)
            self._pid = 0

    def _begin(self) -> None:
        """Fork a child that runs `serve` on its end of a new socket pair and dies with this process. Raises OSError."""
        READER.close()  # its child process can serve only one of us
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                if end_with(parent):
                    as_usual()
                    ours.close()
                    self.serve(theirs)
            except Exception as error:  # a broken library, say: the service continues without the child
                os.write(2, f"rankscope: {clean(f'{type(error).__name__}: {error}', 200)}\n".encode())
            finally:
                os._exit(0)
        theirs.close()
        self._line = ours
