"""The hook of the service: a program that gets each event that matters as JSON on its standard input, in a child that nobody waits for."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from rankscope.diagnose.sweep.hook import run_hook
from rankscope.diagnose.watch.signals import as_usual

TIMEOUT_S = 30.0
_MOST = 4  # at a time; a hook that hangs is no reason to start more


@dataclass(slots=True)
class Hooks:
    """`program` '': none."""

    program: str
    _running: set[int] = field(default_factory=set)

    def tell(self, content: dict[str, Any], state: str) -> str:
        """Start it; why not, '' if it was. What it answers goes to stderr."""
        self.reap()
        if not self.program:
            return ""
        if len(self._running) >= _MOST:
            return f"hook {self.program}: {_MOST} of it are still running; it was not told of this"
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._running.add(pid)
            return ""
        try:
            as_usual()
            os.closerange(3, 65536)  # the service's lock and probes are not the hook's
            if os.getppid() == parent:
                note = run_hook(self.program, {**content, "summary": {"state": state}}, TIMEOUT_S)
                if note:
                    os.write(2, f"rankscope: {note}\n".encode())
        finally:
            os._exit(0)

    def reap(self) -> None:
        """Forget those that have ended."""
        for pid in list(self._running):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._running.discard(pid)
