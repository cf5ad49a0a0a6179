"""The state folder: readings of the last sweep, and a history of findings; SQLite and a lock.

A damaged or foreign file is renamed, with a note. A full, read-only or broken disk is no damage:
what can be read is used, the rest is noted, and the sweep goes on, as it does without memory if the
folder cannot be used (not root) or others can write it. History stores a finding only when its
state or value changed: some kilobytes per host and day.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from rankscope.diagnose import budgets
from rankscope.diagnose.severity import UNKNOWN
from rankscope.diagnose.sweep import lasting, owed
from rankscope.diagnose.sweep.context import Earlier, Reading
from rankscope.diagnose.sweep.damage import BESIDE, FAILURES, sound, unless_unread
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.spare import Spare, Words
from rankscope.probes.base.clocks import NEVER_SO_LONG_S
from rankscope.probes.base.errors import EXIT_UNKNOWN, OutputFailed, RankscopeError
from rankscope.probes.base.folders import opened_folder
from rankscope.probes.host.procfs import reason

STATE_FILE, _LOCK = "sweep.db", "lock"
_VERSION = 1
_MAX_ROWS = 500_000
_POLL_S = 0.05
_TABLES = """
CREATE TABLE IF NOT EXISTS counters(id TEXT, key TEXT, value REAL, time REAL, uptime REAL, boot TEXT, PRIMARY KEY(id, key))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS words(id TEXT, key TEXT, word TEXT, PRIMARY KEY(id, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS current(id TEXT, instance TEXT, state TEXT, value REAL, since REAL, PRIMARY KEY(id, instance))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sweeps(time REAL PRIMARY KEY, state TEXT, seconds REAL, cpu REAL);
CREATE TABLE IF NOT EXISTS history(time REAL, id TEXT, instance TEXT, state TEXT, value REAL, unit TEXT);
CREATE INDEX IF NOT EXISTS history_by_finding ON history(id, instance, time);
"""


class SweepRunning(RankscopeError):
    """Another sweep of this host has not ended."""

    help = "Its result stands; run less often, or look why it takes so long."
    exit_code = EXIT_UNKNOWN


@dataclass(frozen=True, slots=True)
class Point:
    """One entry of the history: a finding's new state or value. `time_s`: Unix time."""

    time_s: float
    id: str
    instance: str
    state: str
    value: float | None
    unit: str


class Store:
    """An open state folder; with `folder` None nothing is remembered. `notes`: what went wrong, in words."""

    def __init__(
        self, folder: Path | None, database: sqlite3.Connection | None, notes: list[str], spare: Spare | None = None
    ) -> None:
        self.folder, self._database, self.notes, self._spare = folder, database, notes, spare
        self._words: Words = {}  # texts of the last saved sweep
        self._spared = False  # this sweep went to the spare, which the next one will use

    def earlier(self) -> Earlier:
        """Load the last sweep's counters and texts. Never raises: adds notes on failures."""
        found = self._remembered()
        if self._spare is not None and (words := self._spare.read(self._last())) is not None:
            found = replace(found, words=words)
        self._words = found.words
        return found

    def _remembered(self) -> Earlier:
        """Load the last sweep's counters and texts from the database; nothing, with a note, if that fails."""
        if self.folder is None or self._database is None:
            return Earlier()
        try:
            return unless_unread(self.folder / STATE_FILE, partial(_earlier, self._database))
        except FAILURES as error:
            self.notes.append(f"the last sweep could not be read ({error}); counters cannot be judged")
        except OSError as error:
            self._database = None  # do not overwrite what could not be read
            self.notes.append(_no_memory(self.folder / STATE_FILE, error))
        return Earlier()

    def save(self, sweep: Sweep, ran: tuple[str, ...], retention_days: float) -> Sweep:
        """Write a sweep in one transaction; return it with `since_s` of its findings filled in. Never raises.

        `ran`: ids of the checks that ran; other checks keep their stored data. If the database fails, the texts go to
        the spare.
        """
        anew = _words_anew(sweep, set(ran))
        kept = {key: word for key, word in self._words.items() if key[0] not in anew}
        kept.update(((identifier, key), word) for identifier, key, word in sweep.words)
        self._words = kept
        if self._database is not None:
            try:
                if leap := _leap(self._database, sweep.time_s):
                    self.notes.append(leap)
                written = _write(self._database, sweep, ran, retention_days)
                if self._spare is not None:
                    self._spare.clear()
                return written
            except FAILURES as error:
                self.notes.append(
                    f"this sweep could not be remembered ({error}); the next one is held against the last that was"
                )
        if self._spare is not None:
            self._spared = True
            if said := self._spare.write(self._last(), kept):
                self.notes.append(said)
        return replace(sweep, findings=tuple(_since(finding, sweep.time_s) for finding in sweep.findings))

    def _last(self) -> float | None:
        """Unix time of the last sweep stored in the state folder; None if unknown. Never raises."""
        if self._database is None:
            return None
        try:
            row = self._database.execute("SELECT time FROM sweeps ORDER BY rowid DESC LIMIT 1").fetchone()
        except FAILURES:
            return None
        return row[0] if row is not None and isinstance(row[0], float) else None

    def paid(self, keys: Iterable[str]) -> None:
        """Delete the stored entries `keys` that the hook was given, after it succeeded. Never raises; notes a failure."""
        gone = {(owed.ID, key) for key in keys}
        failure = ""
        if self._database is not None:
            try:
                self._database.executemany("DELETE FROM words WHERE id = ? AND key = ?", gone)
            except FAILURES as error:
                failure = f" ({error})"
        if self._spare is not None and (self._spared or failure):
            # Otherwise a host that was repaired and resumed without a boot would be drained again.
            self._words = {key: word for key, word in self._words.items() if key not in gone}
            self._spare.write(self._last(), self._words)
            left = self._spare.read(self._last())
            if left is not None and not gone & left.keys():
                return
        elif not failure:
            return
        self.notes.append(f"that the hook ended well could not be remembered{failure}; the next sweep calls it again")

    def history(self, since_s: float, until_s: float) -> tuple[Point, ...]:
        """History between two Unix times, oldest first; newer entries are of a wrong clock. Never raises."""
        if self._database is None:
            return ()
        try:
            rows = self._database.execute(
                "SELECT time, id, instance, state, value, unit FROM history WHERE time BETWEEN ? AND ? ORDER BY time",
                (since_s, until_s),
            )
            return tuple(Point(*row) for row in sound(rows, float, str, str, str, float | None, str))
        except FAILURES as error:
            self.notes.append(f"earlier sweeps could not be read ({error}); trends cannot be seen")
            return ()


def _earlier(database: sqlite3.Connection) -> Earlier:
    """Read counters and texts from the database, skipping invalid rows. Raises FAILURES."""
    counters = database.execute("SELECT id, key, value, time, uptime, boot FROM counters")
    words = database.execute("SELECT id, key, word FROM words")
    return Earlier(
        {(row[0], row[1]): Reading(*row[2:]) for row in sound(counters, str, str, float, float, float, str)},
        {(identifier, key): word for identifier, key, word in sound(words, str, str, str)},
    )


def _no_memory(place: Path, error: BaseException) -> str:
    """Format the note that earlier sweeps are unknown, as `place` cannot be used."""
    return f"no memory of earlier sweeps: {place}: {reason(error)}; counters cannot be judged"


def _write(database: sqlite3.Connection, sweep: Sweep, ran: tuple[str, ...], retention_days: float) -> Sweep:
    """Write a sweep in one transaction; return it with `since_s` of its findings filled in. Raises sqlite3.Error.

    `ran`: ids of the checks that ran.
    """
    with database:
        database.execute("BEGIN IMMEDIATE")
        known = sound(database.execute("SELECT * FROM current"), str, str, str, float | None, float | None)
        current = {(row[0], row[1]): _Current(*row[2:]) for row in known}
        unread = [
            row for key in sweep.unread
            for row in database.execute("SELECT * FROM counters WHERE id = ? AND key = ?", key)
        ]  # fmt: skip
        _forget(database, sweep, set(ran))
        database.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?, ?)", unread)
        findings = tuple(_remember(database, finding, current, sweep.time_s) for finding in sweep.findings)
        database.executemany(
            "INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?, ?)",
            ((*counter, sweep.time_s, sweep.uptime_s, sweep.boot) for counter in sweep.counters),
        )
        database.executemany("INSERT OR REPLACE INTO words VALUES (?, ?, ?)", sweep.words)
        database.execute(
            "INSERT OR REPLACE INTO sweeps VALUES (?, ?, ?, ?)",
            (sweep.time_s, sweep.state, sweep.seconds, sweep.cpu_seconds),
        )
        _prune(database, sweep.time_s, retention_days)
    return replace(sweep, findings=findings)


@contextmanager
def open_store(folder: Path, spare: Spare | None = None, patience_s: float = 0.0) -> Iterator[Store]:
    """Open the state folder, locked against other sweeps. Raises SweepRunning after `patience_s`.

    If the folder cannot be used, the store remembers nothing. `spare`: folder in memory for texts that the state
    folder cannot take.
    """
    try:
        with opened_folder(folder, make=True) as place:
            lock = _lock_file(place)
            _make_file(place)
    except (OSError, OutputFailed) as error:
        yield Store(None, None, [_no_memory(folder, error)], spare)
        return
    try:
        _locked(lock, patience_s)
        notes: list[str] = []
        database = _open(folder / STATE_FILE, notes)
        try:
            yield Store(folder, database, notes, spare)
        finally:
            if database is not None:
                database.close()
    finally:
        os.close(lock)


def _lock_file(place: int) -> int:
    """Open the lock file; on a read-only file system the existing one."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(_LOCK, os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=place)
    except OSError:
        return os.open(_LOCK, os.O_RDONLY | flags, dir_fd=place)


def _locked(lock: int, patience_s: float) -> None:
    """Take the lock, waiting up to `patience_s`. Raises SweepRunning."""
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                raise SweepRunning("another sweep is running") from error
            time.sleep(_POLL_S)
        else:
            return


def _make_file(place: int) -> None:
    """Create an empty state file if missing, in the verified folder even if its path changed."""
    with suppress(OSError):  # a full or read-only disk; connecting reports it
        os.close(os.open(STATE_FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=place))


class _OtherVersion(sqlite3.OperationalError):
    """The store belongs to another version of Rankscope, and is intact."""


def _open(path: Path, notes: list[str]) -> sqlite3.Connection | None:
    """Open the database; None, with a note, if unusable. A damaged one is renamed, and a new one begun.

    OperationalError is a problem of the disk or a lock, any other error after a full read damage.
    """
    try:
        return unless_unread(path, partial(_connect, path))
    except (sqlite3.OperationalError, OSError, MemoryError) as error:
        notes.append(_no_memory(path, error))
        return None
    except (sqlite3.Error, UnicodeError) as error:
        damage = str(error)
    aside = path.with_name(f"{path.name}.broken-{time.time():.0f}")
    try:
        path.replace(aside)
        for suffix in BESIDE:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        notes.append(f"the state file could not be used ({damage}); it is kept as {aside.name}, and a new one is begun")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        return _connect(path)
    except (*FAILURES, OSError) as error:
        notes.append(_no_memory(path, OutputFailed(f"{damage}; {error}")))
        return None


def _connect(path: Path) -> sqlite3.Connection:
    """Connect to an existing database, check it and make its tables. Raises FAILURES.

    Never creates a file: the path may lead elsewhere by now.
    """
    database = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", timeout=1.0, isolation_level=None, uri=True)
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise _OtherVersion(f"it is of version {version}, this is version {_VERSION}; it was left as it is")
        if database.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("it is damaged")
        database.executescript(_TABLES)
        if version != _VERSION:
            database.execute(f"PRAGMA user_version = {_VERSION}")
        # Losing a sweep in a power cut is harmless; waiting for a slow disk every time is not.
        database.execute("PRAGMA synchronous = OFF")
        for table, columns in (("counters", 6), ("words", 3), ("current", 5), ("sweeps", 4), ("history", 6)):
            found = len(database.execute(f"PRAGMA table_info({table})").fetchall())
            if found != columns:
                raise sqlite3.DatabaseError(f"table {table} has another shape")
    except FAILURES:
        database.close()
        raise
    return database


def _since(finding: Finding, since_s: float) -> Finding:
    """Set the begin of a finding, if it has none."""
    return finding if finding.since_s is not None else replace(finding, since_s=since_s)


class _Current(NamedTuple):
    """The last sweep's finding of one instance. `since`: Unix seconds."""

    state: str | None = None
    value: float | None = None
    since: float | None = None


def _forget(database: sqlite3.Connection, sweep: Sweep, ran: set[str]) -> None:
    """Delete stored rows that this sweep replaces.

    A check that could not look keeps its counters, so that growth over the gap is judged next time;
    an incomplete check keeps what it did not report. Each sweep rewrites entries for the hook and of what lasts.
    """
    part = set(sweep.unfinished)
    for identifier in _told(sweep, ran):
        database.execute("DELETE FROM current WHERE id = ?", (identifier,))
    for identifier in {key[0] for key in sweep.counters} - part:
        database.execute("DELETE FROM counters WHERE id = ?", (identifier,))
    for identifier in _words_anew(sweep, ran):
        database.execute("DELETE FROM words WHERE id = ?", (identifier,))


def _told(sweep: Sweep, ran: set[str]) -> set[str]:
    """Ids of the checks among `ran` that finished and reported a known state."""
    return (ran & {finding.id for finding in sweep.findings if finding.state != UNKNOWN}) - set(sweep.unfinished)


def _words_anew(sweep: Sweep, ran: set[str]) -> set[str]:
    """Ids of checks whose stored texts this sweep replaces. `ran`: ids of the checks that ran."""
    return ({key[0] for key in sweep.words} | {owed.ID, lasting.ID}) - set(sweep.unfinished) | _told(sweep, ran)


def _remember(
    database: sqlite3.Connection, finding: Finding, current: Mapping[tuple[str, str], _Current], time_s: float
) -> Finding:
    """Write a finding, also into the history if it changed; fill in `since_s`."""
    before = current.get((finding.id, finding.instance), _Current())
    value = float(finding.value) if isinstance(finding.value, (int, float)) else None
    lasts = before.state == finding.state and before.since is not None
    # A start in the future comes from a clock that was ahead: use now.
    since = finding.since_s or (min(before.since or 0.0, time_s) if lasts else time_s)
    database.execute(
        "INSERT OR REPLACE INTO current VALUES (?, ?, ?, ?, ?)",
        (finding.id, finding.instance, finding.state, value, since),
    )
    if (before.state, before.value) != (finding.state, value):
        database.execute(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?)",
            (time_s, finding.id, finding.instance, finding.state, value, finding.unit),
        )
    return _since(finding, since or time_s)


def _prune(database: sqlite3.Connection, now_s: float, retention_days: float) -> None:
    """Delete rows beyond the retention, and future ones, unless the clock leapt; limit the number of rows.

    No leap is assumed if sweeps reach from before the retention until now without a long gap.
    """
    oldest = now_s - retention_days * budgets.DAY_S
    old = database.execute("SELECT max(time) FROM sweeps WHERE time < ?", (oldest,)).fetchone()[0]
    since = database.execute("SELECT min(time) FROM sweeps WHERE time BETWEEN ? AND ?", (oldest, now_s))
    following = since.fetchone()[0]
    if old is not None and following is not None and following - old <= NEVER_SO_LONG_S:
        for table in ("history", "sweeps"):
            database.execute(f"DELETE FROM {table} WHERE time < ? OR time > ?", (oldest, now_s))
    for table in ("history", "sweeps"):
        database.execute(f"DELETE FROM {table} WHERE rowid <= (SELECT max(rowid) FROM {table}) - ?", (_MAX_ROWS,))


def _leap(database: sqlite3.Connection, now_s: float) -> str:
    """A note if the clock leapt since the last sweep; '' if not."""
    times = database.execute("SELECT time FROM sweeps WHERE typeof(time) = 'real' ORDER BY rowid DESC LIMIT 1")
    last = times.fetchone()
    if last is None or abs(now_s - last[0]) <= NEVER_SO_LONG_S:
        return ""
    years = (now_s - last[0]) / NEVER_SO_LONG_S
    when = f"{abs(years):.0f} years {'later' if years > 0 else 'earlier'} than at the last sweep"
    return f"by this host's clock it is {when}: what earlier sweeps found is kept; set the clock, if it is wrong"
