"""What reading the files of targets has waited for, and for whose sake: nobody's processes or files have those of others left out.

A path below /proc/PID/map_files is found by the kernel with the lock of that process's address space, which its owner can hold for as
long as he likes; then its file system is asked, which may be dead, or busy with what he does to a file of his own. So seconds count
against the user whose process the file was opened for: a file system that has kept him waiting is asked again for others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rankscope.probes.fair import Fair

# A local disk answers in milliseconds, a network file system that is under load in tenths of a second.
DEADLINE_S = 2.0
# With the deadline: what all that hangs may cost one observation, and beyond that one user. From then on only devices that have answered
# are asked.
MOST_HANGS, _HANGS_EACH = 4, 2
# A file system may also answer each time just before the deadline. What its slow answers may take together; from then on it counts as one
# that does not answer.
_SLOW_S, SLOW_MOST_S = 0.25, 30.0
# What slow processes may take until they let go of their files: all together, and beyond that those of one user, in an hour. A healthy one
# takes microseconds; while it forks with 100 GB, tenths of a second.
_FOUND_MOST_S, _FOUND_EACH_S, _AGAIN_S = 10.0, 5.0, 3600.0


def _now_s() -> float:
    return time.monotonic()


def _finding() -> Fair:
    return Fair(_FOUND_MOST_S, _FOUND_EACH_S)


@dataclass(slots=True)
class Waits:
    """What was waited for so far. `owner`: whose process a file was opened for. Pure but for the clock."""

    finding: Fair = field(default_factory=_finding)
    in_vain: Fair = field(default_factory=lambda: Fair(MOST_HANGS * DEADLINE_S, _HANGS_EACH * DEADLINE_S))
    since_s: float = field(default_factory=_now_s)
    hung: dict[str, set[str]] = field(default_factory=dict)  # by device: for whose sake
    answered: set[str] = field(default_factory=set)  # devices that did the last time
    slow_s: dict[tuple[str, str], float] = field(default_factory=dict)  # by device, and for whose sake

    def why_not(self, device: str, owner: str) -> str:
        """Why a file on this device is not to be asked for; '' where it may be."""
        if device in self.hung and owner in self.hung[device]:
            return "its file system does not answer"
        if device not in self.answered and self.in_vain.left(lambda: owner) <= 0:
            return "too many file systems do not answer"
        return ""

    def may_find(self, owner: str) -> bool:
        """Whether a file of a process may be looked for."""
        if time.monotonic() - self.since_s > _AGAIN_S:
            self.finding, self.since_s = _finding(), time.monotonic()
        return self.finding.left(lambda: owner) > 0

    def found(self, seconds: float, owner: str) -> None:
        """So long it took until the process let go of a file, or did not."""
        if seconds > _SLOW_S:
            self.finding.took(seconds, lambda: owner)

    def came(self, device: str, seconds: float, owner: str) -> None:
        """The file system answered after so long."""
        self.answered.add(device)
        if seconds > _SLOW_S:
            mine = device, owner
            self.slow_s[mine] = self.slow_s.get(mine, 0.0) + seconds
            if self.slow_s[mine] > SLOW_MOST_S:
                self.hung.setdefault(device, set()).add(mine[1])

    def did_not_come(self, device: str, seconds: float, owner: str) -> None:
        """It did not, in so long."""
        self.answered.discard(device)
        self.in_vain.took(seconds, lambda: owner)
        self.hung.setdefault(device, set()).add(owner)
