"""Drains that no hook has taken yet: repeated until one takes it or its cause is over, for at most a day.

A hook fails if three nodes are drained already, or its cluster is unreachable. Broken hardware
reports once, so a forgotten drain would leave the host in service. The pause between tries is a
minute, doubled each time, at most an hour.

Drains whose cause lasts until the host boots are also stored in a file, for a restarted service. A
link that is down is not one: a restarted service cannot know whether it came back meanwhile, and
the sweep checks it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankscope.diagnose import budgets
from rankscope.diagnose.service.tell.drain import reason_of
from rankscope.diagnose.severity import CRITICAL, OK
from rankscope.observer.window.staging import put_file, remove_left_files
from rankscope.probes.base.errors import OutputFailed
from rankscope.probes.base.folders import opened_folder, read_ours
from rankscope.probes.host.fair import group_by, interleave
from rankscope.probes.host.procfs import read_file

AGAIN_S, LONGEST_S = 60.0, 3600.0
OWED_S = budgets.DAY_S  # as for the sweep: by then an operator has looked
MOST = 16  # one alone drains the host
LASTING = ("rankscope: gpu/xid ", "rankscope: memory/ecc-errors ")
_FILE_BYTES_MOST = 1 << 20
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain for a hook.

    `since_s`, `due_s`: seconds since boot; `due_s` is inf while its hook runs; `content`: the event; `state`: its
    severity.
    """

    content: dict[str, Any]
    state: str
    user: str
    since_s: float
    due_s: float = _NEVER
    tries: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """The host to drain, and the reason."""
        return key_of(self.content)


def key_of(content: dict[str, Any]) -> tuple[str, str]:
    """Return the host to drain, and the reason, of an event; '' for what it lacks."""
    return str(content.get("drain_host") or ""), str(content.get("drain_reason") or "")


@dataclass(slots=True)
class Drains:
    """Open drains, in memory and in a file; never raises.

    `kept`: a file in a root-only folder, None to store nothing. Times are in seconds since boot, of `clock`.
    """

    kept: Path | None = None
    _of: dict[tuple[str, str], Drain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        now_s = clock()
        for one in self._read():
            if 0 <= now_s - one.since_s < OWED_S:
                self._of[one.key] = replace(one, due_s=now_s)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._of

    def __len__(self) -> int:
        return len(self._of)

    def owe(self, content: dict[str, Any], state: str, user: str) -> int:
        """Add a drain that is being reported, until a hook takes it; return how many drains were dropped.

        Above `MOST` the latest of the user with most are dropped; the new one may be among them.
        """
        before = self._of.get(key_of(content))
        self._of[key_of(content)] = Drain(content, state, user, clock(), tries=before.tries if before else 0)
        stay = interleave(group_by(self._of.values(), lambda one: one.user), MOST)
        left = len(self._of) - len(stay)
        self._of = {one.key: one for one in stay}
        self._keep()
        return left

    def ended(self, key: tuple[str, str], well: bool) -> None:
        """Record the end of a hook for a drain: taken if `well`, else due again after a pause, or dropped after a day."""
        one = self._of.get(key)
        if one is None:
            return
        if well or clock() - one.since_s >= OWED_S:
            self._let_go([one])
        else:
            pause_s = min(AGAIN_S * 2.0**one.tries, LONGEST_S)
            self._of[key] = replace(one, due_s=clock() + pause_s, tries=min(one.tries + 1, 16))

    def over(self, content: dict[str, Any]) -> None:
        """Remove the drains whose trouble this event ends: of its job and alarm, or of hardware that is well again."""
        if content.get("kind") == "over":
            same = ("job", "alarm")
            self._let_go([one for one in self._of.values() if one.content.get("kind") == "verdict"
                          and all(one.content.get(name) == content.get(name) for name in same)])  # fmt: skip
        elif content.get("state") == OK and content.get("component"):
            reason = reason_of(*(str(content.get(name) or "") for name in ("component", "cause", "instance")))
            self._let_go([one for one in self._of.values() if one.key[1] == reason])

    def due(self) -> list[Drain]:
        """Return the drains to repeat now; each is due again only after its hook has ended."""
        now_s = clock()
        found = [one for one in self._of.values() if one.due_s <= now_s]
        for one in found:
            self._of[one.key] = replace(one, due_s=_NEVER)
        return found

    def _let_go(self, gone: list[Drain]) -> None:
        """Remove these drains, and write the file if there are any."""
        for one in gone:
            del self._of[one.key]
        if gone:
            self._keep()

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Write the drains that last until the host boots to the file, without waiting for the disk."""
        if self.kept is None:
            return
        name = self.kept.name
        lasting = [
            one for one in self._of.values() if one.content.get("kind") == "hardware" and one.key[1].startswith(LASTING)
        ]
        rows = [[one.content, one.user, one.since_s] for one in lasting]
        content = json.dumps([_boot(), rows]).encode()
        with contextlib.suppress(OSError, OutputFailed), opened_folder(self.kept.parent, make=True) as place:
            remove_left_files(place)
            put_file(place, name, lambda file: file.write(content), lasting=False)

    def _read(self) -> Iterator[Drain]:
        """Yield the drains stored since the host booted; none if there is no valid file."""
        if self.kept is None:
            return
        try:
            boot, rows = json.loads(read_ours(self.kept.parent, [self.kept.name], _FILE_BYTES_MOST))
            if boot != _boot():
                return
            for content, user, since_s in rows:
                if isinstance(content, dict) and all(key_of(content)):
                    yield Drain(content, CRITICAL, str(user), float(since_s))
        except (OSError, OutputFailed, ValueError, TypeError, OverflowError, RecursionError):
            return


def clock() -> float:
    """Return seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot() -> str:
    """Return the kernel's id of this boot, '' if it cannot be read."""
    try:
        return read_file("/proc/sys/kernel/random/boot_id", 64).decode("ascii", "replace").strip()
    except OSError:
        return ""
