"""Find out at the start of the service what this host allows to observe, by loading every program in a child.

Where no verdict is possible no alarm starts a look: a window would cost the job and reveal nothing.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from rankscope.diagnose.service.looks.look import forked_with_result
from rankscope.diagnose.service.signals import end

_MOST_S = 120.0  # on a host with all cores busy
_BYTES_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Found:
    """Result of the trial.

    `blind`: why no verdict is possible here, '' where one is; `missing`: missing sources, in words.
    """

    blind: str = ""
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class Trial:
    """A child that tries all programs. Call `done` until it returns the result; `close` ends it."""

    _pid: int = 0
    _result: int = -1
    _until_s: float = 0.0

    def begin(self) -> None:
        """Fork the child. Raises OSError."""
        self._until_s = time.monotonic() + _MOST_S
        self._pid, self._result = forked_with_result("trial", _try)

    def done(self) -> Found | None:
        """Return the result once; None while the child runs, and afterwards.

        If the child ended without a result, all sources are assumed present: each window names what
        it lacks.
        """
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
    """Try all sources, and write those that are missing to the descriptor `result` as JSON; runs in the child."""
    # Imported here, in the child: the service needs none of it.
    from rankscope.observer.live.tried import tried
    from rankscope.observer.sources import ESSENTIAL, IN_WORDS, Seen
    from rankscope.probes.base.errors import RankscopeError

    blind, missing = "", list[str]()
    try:
        for one in tried():
            if one.seen is Seen.NOT:
                missing.append(f"{IN_WORDS[one.source]} ({one.why})")
                blind = blind or (missing[-1] if one.source in ESSENTIAL else "")
    except RankscopeError as error:
        blind = str(error)
    os.write(result, json.dumps({"blind": blind[:1000], "missing": [one[:1000] for one in missing]}).encode())
