"""What a check is given: where to read, its settings, what the last sweep read, and how to say what it found.

Counters are judged by `grown`, their change since the last sweep; `recall` and `keep` are for what else must be known
from sweep to sweep ("this port was up"). Both are scoped to the check, so checks run side by side without a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from rankscope.diagnose.severity import CRITICAL, OK, UNKNOWN, WARNING
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.host.procfs import ROOT, read_file

# For so long a counter stays as it was when a check does not ask for it: a device that cannot be looked at for a moment, or has gone and
# comes back, brings what grew meanwhile along. One that stays away is forgotten. One that is asked for and cannot be read stays for as long
# as the host has not booted: after that the device may be another one, or count no more.
UNASKED_S = 86400.0
_Value = TypeVar("_Value")
Setting = float | bool | str | tuple[str, ...]


class NotApplicable(Exception):
    """The host has nothing that the check could look at. Not an error, not unknown."""


class Unreadable(Exception):
    """The check cannot judge; `right` names what it would need to (a capability, an option)."""

    def __init__(self, message: str, right: str = "") -> None:
        super().__init__(message)
        self.right = right


@dataclass(frozen=True, slots=True)
class Growth:
    """Change of a counter since the last sweep, `seconds` ago. `first`: there was no earlier reading to compare with."""

    amount: float
    seconds: float
    first: bool

    @property
    def per_hour(self) -> float:
        """Rate; an interval of less than a minute counts as one, so that a quick second sweep does not exaggerate."""
        return self.amount / max(self.seconds, 60.0) * 3600.0

    @property
    def share(self) -> float:
        """Growth per second: for counters of seconds, the share of the time."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A counter as an earlier sweep read it: when (Unix time and seconds since boot), and in which boot."""

    value: float
    time_s: float
    uptime_s: float
    boot: str


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier sweeps left, by (check, key)."""

    counters: Mapping[tuple[str, str], Reading] = field(default_factory=dict)
    words: Mapping[tuple[str, str], str] = field(default_factory=dict)


class Shared:
    """Readings that several checks use: made once per sweep, by whoever asks first."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._made: dict[str, object] = {}

    def get(self, name: str, make: Callable[[], _Value]) -> _Value:
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._made:
                self._made[name] = make()
            return cast(_Value, self._made[name])


@dataclass(slots=True)
class Context:
    """One check's view of one sweep. Times: `now_s` Unix time, `uptime_s` since boot."""

    id: str
    settings: Mapping[str, Setting]
    root: Path = ROOT
    now_s: float = 0.0
    uptime_s: float = 0.0
    boot: str = ""
    earlier: Earlier = field(default_factory=Earlier)
    shared: Shared = field(default_factory=Shared)
    counters: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    # --- settings and files

    def number(self, name: str) -> float:
        """A threshold of this check."""
        value = self.settings[name]
        if not isinstance(value, (int, float)):
            raise TypeError(f"{self.id}: setting {name} is no number")
        return float(value)

    def path(self, *parts: str) -> Path:
        """A path below the root that is looked at."""
        return Path(self.root).joinpath(*parts)

    def text(self, *parts: str) -> str | None:
        """A small file, stripped; None if it is not there or cannot be read now. Raises PermissionError."""
        try:
            return read_file(str(self.path(*parts)), 65536).decode("utf-8", "replace").strip()
        except PermissionError:
            raise
        except OSError:
            return None

    def integer(self, *parts: str) -> int | None:
        """A small file with one number; None if there is none. Raises PermissionError."""
        try:
            return int(self.text(*parts) or "")
        except ValueError:
            return None

    # --- from sweep to sweep

    def grown(self, key: str, value: float | None, lifetime: bool = False) -> Growth:
        """Change of a counter; kept for the next sweep. `lifetime`: the device keeps it over a boot.

        None: it could not be read now. Nothing has grown then, and the next sweep is held against the reading that is there, while
        that counts.
        """
        then = self.earlier.counters.get((self.id, key))
        if value is None:
            self.unread.add(key)
            return Growth(0.0, 0.0, then is None or not self.stays(then, True))
        value = float(value)  # a dead device answers all ones: more than 63 bits are no integer of SQLite's
        self.counters[key] = value
        if then is None:
            return Growth(0.0, 0.0, True)
        rebooted = bool(then.boot and self.boot and then.boot != self.boot)
        if rebooted and not lifetime:
            return Growth(max(0.0, value), self.uptime_s, False)
        # What was read in an earlier boot is at least as old as this one, whatever the clock says.
        seconds = max(self.now_s - then.time_s, self.uptime_s) if rebooted else self.uptime_s - then.uptime_s
        # A counter that fell was reset, by a driver reload say: all that it shows now came since.
        amount = value - then.value if value >= then.value else max(0.0, value)
        return Growth(amount, max(seconds, 0.0), False)

    def stays(self, reading: Reading, asked: bool) -> bool:
        """Whether an earlier reading still counts, of what could not be read now."""
        if reading.boot == self.boot:
            return asked or self.uptime_s - reading.uptime_s <= UNASKED_S
        return self.now_s - reading.time_s <= UNASKED_S

    def told_before(self, key: str) -> bool:
        """Whether an earlier sweep saw something tell, by `tells`; for as long as a counter that is asked for and cannot be read stays."""
        word = self.recall(key)
        if word is None:
            return False
        boot, _, since = word.rpartition(" ")
        try:
            stays = self.stays(Reading(0.0, float(since), 0.0, boot), True)
        except ValueError:
            stays, word = True, self._now()  # an older word says no time
        if stays:
            self.keep(key, word)
        return stays

    def tells(self, key: str) -> None:
        """That something tells now."""
        self.keep(key, self._now())

    def _now(self) -> str:
        return f"{self.boot} {self.now_s:.0f}"

    def recall(self, key: str) -> str | None:
        """What an earlier sweep kept."""
        return self.earlier.words.get((self.id, key))

    def keep(self, key: str, word: str) -> None:
        """Remember for the sweeps to come."""
        self.words[key] = word[:500]

    # --- results

    def ok(self, read: str, value: float | str | None = None, why: str = "", *, instance: str = "", unit: str = "",
           expected: str = "") -> Finding:  # fmt: skip
        return Finding(self.id, OK, instance, read, value, unit, expected, why, "")

    def bad(self, state: str, read: str, value: float | str | None, *, expected: str, why: str, action: str,
            instance: str = "", unit: str = "", since_s: float | None = None) -> Finding:  # fmt: skip
        """A warning or critical finding; every part must be said."""
        return Finding(self.id, state, instance, read, value, unit, expected, why, action, since_s)

    def warning(self, read: str, value: float | str | None, *, expected: str, why: str, action: str,
                instance: str = "", unit: str = "", since_s: float | None = None) -> Finding:  # fmt: skip
        return Finding(self.id, WARNING, instance, read, value, unit, expected, why, action, since_s)

    def critical(self, read: str, value: float | str | None, *, expected: str, why: str, action: str,
                 instance: str = "", unit: str = "", since_s: float | None = None) -> Finding:  # fmt: skip
        return Finding(self.id, CRITICAL, instance, read, value, unit, expected, why, action, since_s)

    def unknown(self, read: str, why: str, *, instance: str = "", action: str = "") -> Finding:
        return Finding(self.id, UNKNOWN, instance, read, None, "", "", why, action)

    def judged(self, value: float, warning: float, critical: float, read: str, *, why: str, action: str, what: str,
               instance: str = "", unit: str = "") -> Finding:  # fmt: skip
        """A level against two thresholds (bad when above); `what` names the quantity."""
        state = CRITICAL if value > critical else WARNING if value > warning else OK
        expected = f"{what} at most {warning:g}{' ' + unit if unit else ''}"
        if state == OK:
            return Finding(self.id, OK, instance, read, value, unit, expected, "", "")
        return Finding(self.id, state, instance, read, value, unit, expected, why, action)
