"""Limits for looks at a job, and for the service's own cost, which is measured here."""

from __future__ import annotations

import errno
import resource
from collections import deque
from dataclasses import dataclass, field

from rankscope.observer.live.limits import give_back, resident_bytes
from rankscope.probes.base.errors import RankscopeError

WINDOWS_PER_HOUR = 3
_HOUR_S = 3600.0
_BACK_OFF_S = 600.0  # after a look that named no cause; doubled after each further one
_BACK_OFF_MOST_S = 6 * _HOUR_S

CPU_SHARE = 0.05  # of one core, over `CPU_OVER_S`, and the addition for each rank
CPU_SHARE_RANK = 0.002
CPU_OVER_S = 300.0
RESIDENT_BYTES = 256 << 20


class OverBudget(RankscopeError):
    """The service itself uses more CPU or memory of the host than allowed.

    Not 69, after which systemd leaves it stopped: a job can make the service costly, and then any
    user could stop it for good. Restarting costs 30 s without it and a second of CPU; its cost is
    measured anew from there.
    """

    help = "It has ended, and nothing was left behind; systemd starts it again. Report it with the lines before."
    exit_code = 70


class NotNow(RankscopeError):
    """This host temporarily lacks processes, memory, descriptors or kernel resources for the service.

    Any user can use them up. So it is no missing feature (69), after which systemd would leave the service stopped.
    """

    help = "Find who uses them up; systemd starts the service again."
    exit_code = 70


_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def is_passing(error: BaseException) -> bool:
    """Tell whether an error, or its cause, means a temporary lack of resources."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in _PASSING):
            return True
        cause = cause.__cause__
    return False


@dataclass(slots=True)
class Allowance:
    """Budget of looks at one job. Requested ones are always allowed, and count.

    Standstills have a budget of their own, as large: a hang is looked at whatever was looked at before.
    """

    per_hour: int = WINDOWS_PER_HOUR
    _looks: deque[float] = field(default_factory=deque)
    _at_standstills: deque[float] = field(default_factory=deque)  # of these
    _not_before_s: float = float("-inf")
    _nobody: int = 0

    def allows(self, now_s: float, *, urgent: bool = False, standstill: bool = False) -> str:
        """Explain why no look is allowed now; '' if one is.

        Urgent looks are not delayed after one that named no cause. `standstill`: the job stands still.
        """
        for looks in (self._looks, self._at_standstills):
            while looks and now_s - looks[0] >= _HOUR_S:
                looks.popleft()
        if len(self._at_standstills if standstill else self._looks) >= self.per_hour:
            return f"{self.per_hour} windows in an hour are enough"
        if now_s < self._not_before_s and not urgent:
            return f"the last look named nobody: the next one in {(self._not_before_s - now_s) / 60:.0f} min"
        return ""

    def left(self, now_s: float) -> int:
        """Return how many looks the last 3600 s leave of the limit; negative if requested ones exceeded it."""
        return self.per_hour - sum(now_s - at_s < _HOUR_S for at_s in self._looks)

    def is_used(self, now_s: float) -> bool:
        """Tell whether looks were counted in the last hour, or the next one is delayed."""
        return bool(self.allows(now_s)) or bool(self._looks)

    def looked(self, now_s: float, *, standstill: bool = False) -> None:
        """Count a look that has begun towards the hourly limit; any delay after it is set by `learnt`."""
        self._looks.append(now_s)
        if standstill:
            self._at_standstills.append(now_s)

    def learnt(self, now_s: float, accused: bool) -> None:
        """Record whether a look named a cause; after one that did not, delay the next, twice as long each time."""
        self._nobody = 0 if accused else self._nobody + 1
        wait_s = min(_BACK_OFF_S * 2 ** (self._nobody - 1), _BACK_OFF_MOST_S) if self._nobody else 0.0
        self._not_before_s = now_s + wait_s


@dataclass(slots=True)
class OwnCost:
    """CPU and memory used by this process, without its looks, which have their own limits."""

    cpu_s: float = 0.0
    share: float = 0.0
    resident_bytes: int = 0
    _from: tuple[float, float] | None = None

    def measure(self, now_s: float, ranks: int) -> None:
        """Measure CPU and memory of this process. Raises OverBudget above the limits; `ranks`: number of watched ranks."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.cpu_s, self.resident_bytes = used.ru_utime + used.ru_stime, resident_bytes()
        if self._from is None:
            self._from = now_s, self.cpu_s
        elapsed = now_s - self._from[0]
        give_back()
        if elapsed >= 10.0:
            self.share = (self.cpu_s - self._from[1]) / elapsed
        if self.resident_bytes > RESIDENT_BYTES:
            raise OverBudget(f"the service holds {self.resident_bytes >> 20} MB, and may hold {RESIDENT_BYTES >> 20}")
        if elapsed >= CPU_OVER_S:
            self._from = now_s, self.cpu_s
            if self.share > CPU_SHARE + CPU_SHARE_RANK * ranks:
                raise OverBudget(f"the service takes {self.share:.1%} of a core")
