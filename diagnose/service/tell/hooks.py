"""The service's hook: a program that gets each important event as JSON on stdin, in a child, without blocking.

A few run at a time, and the others wait: first drains of this host, then other hardware events,
then all else, users in turn. However many alarms a crowd of jobs raises, no drain is lost, as one
slot is reserved for drains; nor is an alarm of another user. A drain whose hook fails is repeated
(`owed.py`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.diagnose.service.signals import as_usual
from rankscope.diagnose.service.tell import owed
from rankscope.diagnose.service.tell.lines import written
from rankscope.diagnose.service.tell.owed import Drains, key_of
from rankscope.diagnose.service.turns import Turns
from rankscope.diagnose.sweep.hook import run_hook

TIMEOUT_S = 30.0
_MOST = 4  # at a time; a hook that hangs is no reason to start more
_MOST_OTHERS = 3  # of these, for events without a drain
WAITING_MOST = 64
_DRAIN, _HARDWARE, _OTHER = range(3)


@dataclass(frozen=True, slots=True)
class _Told:
    """An event that waits for its hook. `again`: it repeats a drain that no hook has taken."""

    content: dict[str, Any]
    state: str
    user: str
    again: bool = False

    @property
    def urgency(self) -> int:
        """Class of urgency, lower is sooner: 0 for drains, 1 for other hardware events, 2 for all else."""
        if self.content.get("drain_reason"):
            return _DRAIN
        # Events that a program can cause itself are as urgent as any alarm.
        hardware = self.content.get("kind") == "hardware" and not self.content.get("of_application")
        return _HARDWARE if hardware else _OTHER


@dataclass(slots=True)
class Hooks:
    """Runs the hooks. `program`: '' for none; `kept`: a file with open drains, for a restarted service."""

    program: str
    kept: Path | None = None
    _running: set[int] = field(default_factory=set)
    # those of them that report a drain
    _draining: dict[int, tuple[str, str]] = field(default_factory=dict)
    _owed: Drains = field(init=False)
    _waiting: list[_Told] = field(default_factory=list)
    _turns: Turns = field(default_factory=Turns)
    _lost: int = 0
    _refused: bool = False

    def __post_init__(self) -> None:
        self._owed = Drains(self.kept if self.program else None)

    def tell(self, content: dict[str, Any], state: str, user: str = "") -> str:
        """Start the hook for an event, at once or in its turn (`tend`); return what went wrong, '' if nothing.

        `state`: severity; `user`: owner of the job concerned. The hook's answer goes to stderr.
        """
        if not self.program:
            return ""
        self._waiting.append(_Told(content, state, user))
        left = self._owed.owe(content, state, user) if content.get("drain_reason") else 0
        note = f"hook {self.program}: of more than {owed.MOST} drains {left} is not told again" if left else ""
        return "; ".join(note for note in (self.tend(), self._within_bounds(), note) if note)

    def over(self, content: dict[str, Any]) -> None:
        """Handle an event that ends a trouble: its drain is not repeated any more."""
        self._owed.over(content)
        self._waiting = [one for one in self._waiting if not one.again or key_of(one.content) in self._owed]

    def tend(self) -> str:
        """Forget ended hooks and start waiting ones; return what went wrong, '' if nothing. Call regularly."""
        self.reap()
        self._waiting += (_Told(one.content, one.state, one.user, True) for one in self._owed.due())
        while self._waiting:
            told = min(
                self._turns.order(self._waiting, lambda one: one.user), key=lambda one: one.urgency
            )  # the first of several
            if len(self._running) >= (_MOST if told.urgency == _DRAIN else _MOST_OTHERS):
                return ""
            try:
                self._start(told)
            except OSError as error:  # no process available: any user can use them up
                note = "" if self._refused else f"hook {self.program}: not now ({error.strerror}); it is tried again"
                self._refused = True
                return note
            self._waiting.remove(told)
            self._turns.took(told.user)
            self._refused = False
        self._lost = 0
        return ""

    def close(self) -> str:
        """Describe the events that will never be delivered, '' if there are none."""
        self.reap()
        never = sum(not one.again for one in self._waiting)
        said = f"it was not told of {never} events" if never else ""
        taken = f"{len(self._owed)} drains were not taken" if len(self._owed) else ""
        return f"hook {self.program}: {'; '.join(filter(None, (said, taken)))}" if said or taken else ""

    def reap(self) -> None:
        """Forget hooks that have ended, and record for those of drains whether they succeeded."""
        for pid in list(self._running):
            status = 1  # if unknown
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
            self._running.discard(pid)
            if (key := self._draining.pop(pid, None)) is not None:
                self._owed.ended(key, well=status == 0)

    def _within_bounds(self) -> str:
        """Drop one waiting event if there are too many; return a message at the first, '' until all are delivered.

        It is the last of the least urgent, of the user and job with most of them.
        """
        if len(self._waiting) <= WAITING_MOST:
            return ""
        least = max(one.urgency for one in self._waiting)
        among = [(at, one) for at, one in enumerate(self._waiting) if one.urgency == least]
        users = Counter(one.user for _, one in among)
        crowd = Counter(one.content.get("job") for _, one in among)
        at, _ = max(among, key=lambda each: (users[each[1].user], crowd[each[1].content.get("job")], each[0]))
        self._owed.ended(key_of(self._waiting.pop(at).content), well=False)
        self._lost += 1
        if self._lost > 1:
            return ""
        return f"hook {self.program}: {WAITING_MOST} events wait for it; of those that are not about hardware some are not told"

    def _start(self, told: _Told) -> None:
        """Start the hook for an event in a child. Raises OSError."""
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._running.add(pid)
            if told.content.get("drain_reason"):
                self._draining[pid] = key_of(told.content)
            return
        code = 1
        try:
            as_usual()
            os.closerange(3, 65536)  # the service's lock and probes are not for the hook
            if os.getppid() == parent:
                note = run_hook(self.program, {**told.content, "summary": {"state": told.state}}, TIMEOUT_S)
                code = 1 if note else 0
                if note:
                    written(2, f"rankscope: {note}\n".encode())
                # a process that the kernel does not release occupies its slot
                with contextlib.suppress(ChildProcessError):
                    while True:
                        os.wait()
        finally:
            os._exit(code)
