"""The hook of the service: a program that gets each event that matters as JSON on its standard input, in a child that nobody waits for.

A few run at a time, and the others wait: first what wants this host drained, then what else hardware told, then all else, users in turn.
However many alarms a crowd of jobs makes, no drain is lost in it, one place is kept free for them; nor is an alarm of another user's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rankscope.diagnose.sweep.hook import run_hook
from rankscope.diagnose.watch.signals import as_usual
from rankscope.diagnose.watch.turns import Turns

TIMEOUT_S = 30.0
_MOST = 4  # at a time; a hook that hangs is no reason to start more
_MOST_OTHERS = 3  # of these, for what drains nobody
WAITING_MOST = 64
_DRAIN, _HARDWARE, _OTHER = range(3)


@dataclass(frozen=True, slots=True)
class _Told:
    """An event that waits for its hook."""

    content: dict[str, Any]
    state: str
    user: str

    @property
    def urgency(self) -> int:
        """The less the sooner."""
        if self.content.get("drain_reason"):
            return _DRAIN
        # What a program can bring about itself is as urgent as any alarm.
        hardware = self.content.get("kind") == "hardware" and not self.content.get("of_application")
        return _HARDWARE if hardware else _OTHER


@dataclass(slots=True)
class Hooks:
    """`program` '': none."""

    program: str
    _running: set[int] = field(default_factory=set)
    _waiting: list[_Told] = field(default_factory=list)
    _turns: Turns = field(default_factory=Turns)
    _lost: int = 0
    _refused: bool = False

    def tell(self, content: dict[str, Any], state: str, user: str = "") -> str:
        """Start it, at once or when its turn comes (`tend`); `user`: whose job it is about. What went wrong, '' if nothing. What it answers
        goes to stderr."""
        if not self.program:
            return ""
        self._waiting.append(_Told(content, state, user))
        return "; ".join(note for note in (self.tend(), self._within_bounds()) if note)

    def tend(self) -> str:
        """Forget the hooks that have ended, start those that wait: to be called again and again. What went wrong, '' if nothing."""
        self.reap()
        while self._waiting:
            told = min(
                self._turns.order(self._waiting, lambda one: one.user), key=lambda one: one.urgency
            )  # of several the first
            if len(self._running) >= (_MOST if told.urgency == _DRAIN else _MOST_OTHERS):
                return ""
            try:
                self._start(told)
            except OSError as error:  # no process to be had: any user can use them up
                note = "" if self._refused else f"hook {self.program}: not now ({error.strerror}); it is tried again"
                self._refused = True
                return note
            self._waiting.remove(told)
            self._turns.took(told.user)
            self._refused = False
        self._lost = 0
        return ""

    def close(self) -> str:
        """What nobody will be told of any more, '' if there is nothing."""
        self.reap()
        return f"hook {self.program}: it was not told of {len(self._waiting)} events" if self._waiting else ""

    def reap(self) -> None:
        """Forget those that have ended."""
        for pid in list(self._running):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._running.discard(pid)

    def _within_bounds(self) -> str:
        """Let go of what there is no room for: the last of the least urgent, of the user and the job with most of them. Said once until all
        is told."""
        if len(self._waiting) <= WAITING_MOST:
            return ""
        least = max(one.urgency for one in self._waiting)
        among = [(at, one) for at, one in enumerate(self._waiting) if one.urgency == least]
        users = Counter(one.user for _, one in among)
        crowd = Counter(one.content.get("job") for _, one in among)
        at, _ = max(among, key=lambda each: (users[each[1].user], crowd[each[1].content.get("job")], each[0]))
        del self._waiting[at]
        self._lost += 1
        if self._lost > 1:
            return ""
        return f"hook {self.program}: {WAITING_MOST} events wait for it; of those that are not about hardware some are not told"

    def _start(self, told: _Told) -> None:
        """OSError."""
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._running.add(pid)
            return
        try:
            as_usual()
            os.closerange(3, 65536)  # the service's lock and probes are not the hook's
            if os.getppid() == parent:
                note = run_hook(self.program, {**told.content, "summary": {"state": told.state}}, TIMEOUT_S)
                if note:
                    os.write(2, f"rankscope: {note}\n".encode())
                with contextlib.suppress(ChildProcessError):  # one that the kernel does not let go of keeps its place
                    while True:
                        os.wait()
        finally:
            os._exit(0)
