"""What can be seen on this host at all, found out once as the service begins, by a child that loads every program and lets go of it.

Where no verdict can be had no alarm is looked at: the window would cost the job and tell nothing.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from rankscope.diagnose.watch.looks.look import forked
from rankscope.diagnose.watch.signals import end

_MOST_S = 120.0  # on a host whose every core is taken
_BYTES_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Found:
    """`blind`: why no verdict can be had here, '' where one can; `missing`: sources that are not there, in words."""

    blind: str = ""
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class Trial:
    """A child that tries. Ask `done` until it says what was found; `close` ends it."""

    _pid: int = 0
    _result: int = -1
    _until_s: float = 0.0

    def begin(self) -> None:
        """Fork the child. OSError."""
        self._result = os.memfd_create("trial", os.MFD_CLOEXEC)
        result = self._result
        self._until_s = time.monotonic() + _MOST_S
        self._pid = forked(lambda: _try(result))

    def done(self) -> Found | None:
        """What was found; None while the child runs, and after it was told once. Where the child ended without a word all is taken to be
        there: every window says by itself what it lacks."""
        if not self._pid:
            return None
        ended, _ = os.waitpid(self._pid, os.WNOHANG)
        if not ended and time.monotonic() < self._until_s:
            return None
        if not ended:
            end(self._pid)
        self._pid = 0
        try:
            with os.fdopen(self._result, "rb") as file:
                file.seek(0)
                said = json.loads(file.read(_BYTES_MOST))
            return Found(str(said["blind"]), tuple(map(str, said["missing"])))
        except (OSError, ValueError, KeyError, TypeError):
            return Found()

    def close(self) -> None:
        """End the child if it still runs."""
        if self._pid:
            end(self._pid)
            os.close(self._result)
            self._pid = 0


def _try(result: int) -> None:
    # Here, in the child, as the service needs none of it.
    from rankscope.observer.live.tried import tried
    from rankscope.observer.sources import ESSENTIAL, IN_WORDS, Seen
    from rankscope.probes.errors import RankscopeError

    blind, missing = "", list[str]()
    try:
        for one in tried():
            if one.seen is Seen.NOT:
                missing.append(f"{IN_WORDS[one.source]} ({one.why})")
                blind = blind or (missing[-1] if one.source in ESSENTIAL else "")
    except RankscopeError as error:
        blind = str(error)
    os.write(result, json.dumps({"blind": blind[:1000], "missing": [one[:1000] for one in missing]}).encode())
