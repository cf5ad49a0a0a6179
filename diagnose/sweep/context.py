"""The interface of a check: files, settings, results of earlier sweeps, and ways to report findings.

Counters are judged with `grown`, their change since the last sweep; `recall` and `keep` store other facts between
sweeps ("this port was up"). Both are scoped to the check, so parallel checks need no lock.
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

# How long a counter's reading is kept after the last read by its check: a device may be absent for
# a while and return with a higher count. A counter that is read in vain keeps its reading until the
# next boot, after which the device may be another one.
UNASKED_S = 86400.0
_Value = TypeVar("_Value")
Setting = float | bool | str | tuple[str, ...]


class NotApplicable(Exception):
    """The host lacks what the check examines. Neither an error nor unknown."""


class Unreadable(Exception):
    """The check cannot judge; `right` names the missing capability or option."""

    def __init__(self, message: str, right: str = "") -> None:
        super().__init__(message)
        self.right = right


@dataclass(frozen=True, slots=True)
class Growth:
    """Change of a counter since the last sweep, `seconds` ago.

    `first`: there is no earlier reading.
    """

    amount: float
    seconds: float
    first: bool

    @property
    def per_hour(self) -> float:
        """Change per hour.

        Intervals below a minute count as one, so that a quick second sweep does not exaggerate.
        """
        return self.amount / max(self.seconds, 60.0) * 3600.0

    @property
    def share(self) -> float:
        """Change per second: for counters in seconds, the share of the time."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A counter's value in an earlier sweep, with Unix time, seconds since boot, and boot id."""

    value: float
    time_s: float
    uptime_s: float
    boot: str


@dataclass(frozen=True, slots=True)
class Earlier:
    """Results stored by earlier sweeps, by (check, key)."""

    counters: Mapping[tuple[str, str], Reading] = field(default_factory=dict)
    words: Mapping[tuple[str, str], str] = field(default_factory=dict)


class Shared:
    """Cache of readings that several checks use, made once per sweep by the first check that needs them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._made: dict[str, object] = {}

    def get(self, name: str, make: Callable[[], _Value]) -> _Value:
        """Return the reading of this name; the first caller makes it by `make`, and others wait meanwhile.

        What `make` raises is raised, and not cached.
        """
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._made:
                self._made[name] = make()
            return cast(_Value, self._made[name])


@dataclass(slots=True)
class Context:
    """A check's view of one sweep. `now_s`: Unix time; `uptime_s`: seconds since boot."""

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
        """A numeric setting of this check. Raises TypeError if it is not a number."""
        value = self.settings[name]
        if not isinstance(value, (int, float)):
            raise TypeError(f"{self.id}: setting {name} is no number")
        return float(value)

    def path(self, *parts: str) -> Path:
        """Path below the inspected root."""
        return Path(self.root).joinpath(*parts)

    def text(self, *parts: str) -> str | None:
        """Content of a small file, stripped; None if absent or unreadable now.

        Raises PermissionError.
        """
        try:
            return read_file(str(self.path(*parts)), 65536).decode("utf-8", "replace").strip()
        except PermissionError:
            raise
        except OSError:
            return None

    def integer(self, *parts: str) -> int | None:
        """Number in a small file; None if there is none. Raises PermissionError."""
        try:
            return int(self.text(*parts) or "")
        except ValueError:
            return None

    # --- from sweep to sweep

    def grown(self, key: str, value: float | None, lifetime: bool = False) -> Growth:
        """Return how a counter changed since the last sweep, and store its value for the next.

        `lifetime`: it survives boots. `value` None: unreadable now. Then nothing has grown, and the next sweep
        compares with the old reading as long as that is valid.
        """
        then = self.earlier.counters.get((self.id, key))
        if value is None:
            self.unread.add(key)
            return Growth(0.0, 0.0, then is None or not self.stays(then, True))
        value = float(value)  # a dead device answers all ones; SQLite integers have 63 bits
        self.counters[key] = value
        if then is None:
            return Growth(0.0, 0.0, True)
        rebooted = bool(then.boot and self.boot and then.boot != self.boot)
        if rebooted and not lifetime:
            return Growth(max(0.0, value), self.uptime_s, False)
        # A reading from an earlier boot is at least as old as this boot, whatever the clock says.
        seconds = max(self.now_s - then.time_s, self.uptime_s) if rebooted else self.uptime_s - then.uptime_s
        # A lower value means a reset (a driver reload, say): the whole count is new.
        amount = value - then.value if value >= then.value else max(0.0, value)
        return Growth(amount, max(seconds, 0.0), False)

    def stays(self, reading: Reading, asked: bool) -> bool:
        """Whether an earlier reading of a counter that was not read now is still valid.

        `asked`: a read was attempted.
        """
        if reading.boot == self.boot:
            return asked or self.uptime_s - reading.uptime_s <= UNASKED_S
        return self.now_s - reading.time_s <= UNASKED_S

    def told_before(self, key: str) -> bool:
        """Whether an earlier sweep called `tells(key)`, within the validity of a counter; keeps the entry then."""
        word = self.recall(key)
        if word is None:
            return False
        boot, _, since = word.rpartition(" ")
        try:
            stays = self.stays(Reading(0.0, float(since), 0.0, boot), True)
        except ValueError:
            stays, word = True, self._now()  # an entry without a time
        if stays:
            self.keep(key, word)
        return stays

    def tells(self, key: str) -> None:
        """Record that the source named by `key` reports a value now, for `told_before`."""
        self.keep(key, self._now())

    def _now(self) -> str:
        """Id of this boot and Unix time, as text for storing."""
        return f"{self.boot} {self.now_s:.0f}"

    def recall(self, key: str) -> str | None:
        """Text that an earlier sweep stored under this key; None if none."""
        return self.earlier.words.get((self.id, key))

    def keep(self, key: str, word: str) -> None:
        """Store a text (up to 500 characters) for later sweeps."""
        self.words[key] = word[:500]

    # --- results

    def ok(self, read: str, value: float | str | None = None, why: str = "", *, instance: str = "", unit: str = "",
           expected: str = "") -> Finding:  # fmt: skip
        """A finding that nothing is wrong. `read`: the source; `value` in `unit`: what it gave."""
        return Finding(self.id, OK, instance, read, value, unit, expected, why, "")

    def bad(self, state: str, read: str, value: float | str | None, *, expected: str, why: str, action: str,
            instance: str = "", unit: str = "", since_s: float | None = None, lasts: bool = False) -> Finding:  # fmt: skip
        """A warning or critical finding, by `state`; `read`: the source; `value` in `unit`: what it gave.

        `lasts`: a counter grew; later sweeps report it again for the setting `hours`.
        """
        return Finding(self.id, state, instance, read, value, unit, expected, why, action, since_s, lasts)

    def warning(self, read: str, value: float | str | None, *, expected: str, why: str, action: str,
                instance: str = "", unit: str = "", since_s: float | None = None, lasts: bool = False) -> Finding:  # fmt: skip
        """A warning; parameters as in `bad`."""
        return Finding(self.id, WARNING, instance, read, value, unit, expected, why, action, since_s, lasts)

    def critical(self, read: str, value: float | str | None, *, expected: str, why: str, action: str,
                 instance: str = "", unit: str = "", since_s: float | None = None, lasts: bool = False) -> Finding:  # fmt: skip
        """A critical finding; parameters as in `bad`."""
        return Finding(self.id, CRITICAL, instance, read, value, unit, expected, why, action, since_s, lasts)

    def unknown(self, read: str, why: str, *, instance: str = "", action: str = "") -> Finding:
        """A finding that the state is unknown; `why`: the reason."""
        return Finding(self.id, UNKNOWN, instance, read, None, "", "", why, action)

    def judged(self, value: float, warning: float, critical: float, read: str, *, why: str, action: str, what: str,
               instance: str = "", unit: str = "", lasts: bool = False) -> Finding:  # fmt: skip
        """A finding from a value and two thresholds (bad above); `what` names the quantity, `lasts` as in `bad`."""
        state = CRITICAL if value > critical else WARNING if value > warning else OK
        expected = f"{what} at most {warning:g}{' ' + unit if unit else ''}"
        if state == OK:
            return Finding(self.id, OK, instance, read, value, unit, expected, "", "")
        return Finding(self.id, state, instance, read, value, unit, expected, why, action, lasts=lasts)
