"""The server's handle of its worker process: start it, ask it, end it where it takes too long."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from rankscope.diagnose.face.mcp.places import Places
from rankscope.diagnose.face.mcp.worker import serve
from rankscope.diagnose.infer.fleet.large.isolated import isolate_children

_ENDS_S = 5.0  # a recorder detaches its probes meanwhile
_AROUND_BYTES = 1 << 20


@dataclass(slots=True)
class Worker:
    """Handle of the process that answers. The next question starts another one where it has ended."""

    places: Places
    most_bytes: int
    _process: SpawnProcess | None = None
    _line: Connection | None = None

    def start(self) -> None:
        """Start the process unless it runs. Call it in the main thread: the process ends with the thread that started it."""
        if self._process is not None and self._process.is_alive():
            return
        self.end()
        isolate_children()
        context = get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, os.getpid(), self.places, self.most_bytes))
        self._process.start()
        theirs.close()

    def ask(self, tool: str, arguments: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Ask the running process and wait; return its answer, or {"error": why there is none}."""
        line = self._line
        if line is None:
            return {"error": "the process that answers could not be started"}
        try:
            line.send_bytes(json.dumps({"tool": tool, "arguments": arguments}).encode())
            if not line.poll(limit_s):
                self.end()
                return {"error": f"no answer within {limit_s:g} s: ask for less (fewer windows, one job)"}
            found: dict[str, Any] = json.loads(line.recv_bytes(4 * self.most_bytes + _AROUND_BYTES))
        except (EOFError, OSError, ValueError):
            self.end()
            return {"error": "the process that answers has ended (out of memory?): ask for less"}
        return found

    def end(self) -> None:
        """End the process; it gets `_ENDS_S` seconds to clean up."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.join(_ENDS_S)
            if process.is_alive():
                process.kill()
                process.join(1.0)
        line, self._line = self._line, None
        if line is not None:
            with suppress(OSError):
                line.close()
