"""Seconds spent waiting for targets' files, counted per user, so that nobody's slow files exclude others'.

The kernel resolves a path below /proc/PID/map_files under the lock of that process's address space,
which its owner can hold for as long as he likes; then its file system is called, which may be dead,
or slowed by operations on a file of his own. So seconds count against the user whose process the
file was opened for: a file system that was slow for him is tried again for others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rankscope.probes.host.fair import Fair

# A local disk answers in milliseconds, a network file system that is under load in tenths of a second.
DEADLINE_S = 2.0
# With the deadline: what hanging file systems may cost one observation, and beyond that one user.
# From then on only devices that have answered are used.
MOST_HANGS, _HANGS_EACH = 4, 2
# A file system may also answer each time just before the deadline: the total for its slow answers;
# from then on it counts as dead.
_SLOW_S, SLOW_MOST_S = 0.25, 30.0
# What slow processes may take until the kernel finds their files: all together, and beyond that
# those of one user, in an hour. Normally microseconds; tenths of a second while a process with 100
# GB forks.
_FOUND_MOST_S, _FOUND_EACH_S, _AGAIN_S = 10.0, 5.0, 3600.0


def _now_s() -> float:
    """Return CLOCK_MONOTONIC in seconds."""
    return time.monotonic()


def _finding() -> Fair:
    """Create the account, divided among users, of seconds in which slow processes delay finding their files."""
    return Fair(_FOUND_MOST_S, _FOUND_EACH_S)


@dataclass(slots=True)
class Waits:
    """Waiting time so far. `owner` arguments: the user whose process a file was opened for. Pure
    but for the clock.
    """

    finding: Fair = field(default_factory=_finding)
    in_vain: Fair = field(default_factory=lambda: Fair(MOST_HANGS * DEADLINE_S, _HANGS_EACH * DEADLINE_S))
    since_s: float = field(default_factory=_now_s)
    hung: dict[str, set[str]] = field(default_factory=dict)  # device -> owners for whom it hung
    answered: set[str] = field(default_factory=set)  # devices that answered the last time
    # (device, owner) -> seconds of slow answers
    slow_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def why_not(self, device: str, owner: str) -> str:
        """Say why a file on this device must not be opened; '' where it may be."""
        if device in self.hung and owner in self.hung[device]:
            return "its file system does not answer"
        if device not in self.answered and self.in_vain.left(lambda: owner) <= 0:
            return "too many file systems do not answer"
        return ""

    def may_find(self, owner: str) -> bool:
        """Tell whether files of a user's processes may still be looked up; the account starts anew every hour."""
        if time.monotonic() - self.since_s > _AGAIN_S:
            self.finding, self.since_s = _finding(), time.monotonic()
        return self.finding.left(lambda: owner) > 0

    def found(self, seconds: float, owner: str) -> None:
        """Record that the kernel took so long to find a file in the process, successfully or not."""
        if seconds > _SLOW_S:
            self.finding.spend(seconds, lambda: owner)

    def came(self, device: str, seconds: float, owner: str) -> None:
        """Record that the file system answered a read for `owner` after so many seconds.

        Once its slow answers exceed `SLOW_MOST_S` in all, the device counts as dead for that owner.
        """
        self.answered.add(device)
        if seconds > _SLOW_S:
            mine = device, owner
            self.slow_s[mine] = self.slow_s.get(mine, 0.0) + seconds
            if self.slow_s[mine] > SLOW_MOST_S:
                self.hung.setdefault(device, set()).add(mine[1])

    def did_not_come(self, device: str, seconds: float, owner: str) -> None:
        """Record that the file system `device` gave no answer in `seconds` to a read for `owner`.

        From then on the device counts as dead for that owner alone.
        """
        self.answered.discard(device)
        self.in_vain.spend(seconds, lambda: owner)
        self.hung.setdefault(device, set()).add(owner)
