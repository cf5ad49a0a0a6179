"""The history of windows: a store in one folder, in Parquet.

    DIR/windows/<name>/   a window folder (observer/window/folder.py) with its verdict, verdict.json
    DIR/index.parquet     one row per window (`INDEX`); a cache, rebuilt if lost or damaged
    DIR/lock              locked while writing

Writes are atomic. A window is written under a `.partial-` name next to its destination, flushed and
renamed; so is the index; both under the lock, which the kernel releases when a writer is killed.
The next writer of that host removes or indexes what a killed one left (a `.partial-` folder, a
window not in the index). Readers take no lock: they see the index before or after a write, and skip
removed windows.

Windows are stored whole (about 10 KB per rank), up to `cap_bytes` per host; a host removes its own
oldest, of the user that has most. No host removes windows of another (also one of the same name),
or unreadable ones.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.past.runs import kind_of_run
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.stats.robust import median
from rankscope.observer.window.folder import MANIFEST, Window, read_manifest, read_window, write_window
from rankscope.observer.window.schema import NOTHING
from rankscope.observer.window.staging import PARTIAL, put_file, remove_left
from rankscope.observer.window.tables import cast, read_table, with_absent
from rankscope.probes.base.clocks import age_order
from rankscope.probes.base.errors import BadData, OutputFailed
from rankscope.probes.base.folders import UnsafePlace, opened_folder, read_plain, take_lock

DEFAULT_FOLDER = Path("/var/lib/rankscope/history")
CAP_BYTES = budgets.STORE_BYTES_MOST
_INDEX, _WINDOWS, _LOCK, _VERDICT = "index.parquet", "windows", "lock", "verdict.json"
_ASKED_MOST = 256  # manifests read under the lock: milliseconds, or 3 s on a disk with 10 ms each

INDEX = pa.schema(
    [
        pa.field("name", pa.string(), False),
        pa.field("job", pa.string(), False),
        pa.field("host", pa.string(), False),
        pa.field("start", pa.float64(), False),
        pa.field("seconds", pa.float64(), False),
        pa.field("ranks", pa.int64(), False),
        pa.field("world_size", pa.int64(), False),
        pa.field("roles", pa.string(), False),
        pa.field("status", pa.string(), False),
        pa.field("suspects", pa.string(), False),
        pa.field("peerless", pa.bool_(), False),
        pa.field("steps", pa.int64(), False),
        pa.field("step_p50", pa.float64(), False),
        pa.field("bytes", pa.int64(), False),
        pa.field("owner", pa.int64(), False),
        # These were added later; an index without them is not rebuilt.
        pa.field("machine", pa.string(), True, {"absent": NOTHING}),
        pa.field("run", pa.string(), False, {"absent": ""}),
    ]
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored window of one job on one host. `start`: Unix time."""

    name: str  # folder name
    job: str
    host: str
    start: float
    seconds: float
    ranks: int
    world_size: int
    roles: str  # the different roles of its ranks, sorted, joined by ','
    status: str  # of the verdict
    suspects: str  # 'component/cause rank 3; …'
    peerless: bool  # no rank has a peer: only earlier windows can judge it
    steps: int  # complete steps of a rank
    step_p50: float  # seconds; NaN without steps
    bytes: int  # on disk
    owner: int = -1  # user id of the job's owner; -1: unknown
    machine: str | None = ""  # machine id, distinguishes hosts of one name; None: from an older index
    run: str = ""  # digest of what its ranks run (runs.py); '': unknown

    def is_of_host_of(self, other: Entry) -> bool:
        """Whether the same host made both, by name and machine id (names may coincide)."""
        return (self.host, self.machine) == (other.host, other.machine)


class History:
    """A history folder; nothing is written before `prepare` or `add`."""

    def __init__(self, folder: Path = DEFAULT_FOLDER, cap_bytes: int = CAP_BYTES) -> None:
        self.folder, self._cap_bytes = folder, cap_bytes

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the folder (0700) and check that it is writable. Raises OutputFailed."""
        with self._locked():
            pass

    def add(self, window: Window, verdict: Verdict) -> Entry:
        """Store a window (of one job) with its verdict, within the size limit.

        Atomic. Raises OutputFailed.
        """
        with self._locked() as place:
            remove_left(place)
            name = self._write(window, verdict)
            before = self._with_machines(self._reconciled(name), window.manifest.host)
            entries = [*before, describe(name, window, verdict, _size(self._place(name)))]
            kept = self._within_cap(entries)
            self._write_index(kept, place)
            names = {entry.name for entry in kept}
            for entry in entries:
                if entry.name not in names:
                    shutil.rmtree(self._place(entry.name), ignore_errors=True)
        return entries[-1]

    def _write(self, window: Window, verdict: Verdict) -> str:
        """Write the window folder with its verdict; return its name."""
        return write_window(window, self.folder / _WINDOWS, {_VERDICT: to_json(verdict).encode()}).name

    def _within_cap(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries that fit the limit: the new one (last), the newest others, all of other hosts.

        Leaves out the oldest of the user that has most, so that no user displaces another's past;
        deletes no files.
        """
        new, now_s = entries[-1], time.time()
        of_user: dict[int, deque[Entry]] = {}
        mine_all = (one for one in entries[:-1] if one.is_of_host_of(new))
        for entry in sorted(mine_all, key=lambda each: age_order(each.start, now_s)):
            of_user.setdefault(entry.owner, deque()).append(entry)
        held = Counter({user: sum(entry.bytes for entry in mine) for user, mine in of_user.items()})
        held[new.owner] += new.bytes
        while held.total() > self._cap_bytes and (some := [user for user, mine in of_user.items() if mine]):
            user = max(some, key=lambda each: (held[each], -of_user[each][0].start))
            held[user] -= of_user[user].popleft().bytes
        kept = [entry for entry in entries[:-1] if not entry.is_of_host_of(new)]
        kept += (entry for mine in of_user.values() for entry in mine)
        return [*sorted(kept, key=lambda each: each.start), new]

    def _reconciled(self, new: str) -> list[Entry]:
        """Match the index with the folders: without removed windows, with windows not indexed yet.

        `new`: name of the folder just written, which is left out. A folder that cannot be read now
        is skipped: the disk may be failing, or a newer version wrote it.
        """
        names = {path.name for path in (self.folder / _WINDOWS).iterdir()} - {new}
        there = {name for name in names if not name.startswith(PARTIAL)}
        known = [entry for entry in self._read_index() if entry.name in there]
        missing = sorted(there - {entry.name for entry in known})
        return [*known, *(entry for name in missing if (entry := self._entry_of_folder(name)) is not None)]

    def _with_machines(self, entries: Sequence[Entry], host: str) -> list[Entry]:
        """Fill in machine ids that are missing in this host's entries of an older index.

        At most _ASKED_MOST per call, the oldest first. Until then such entries belong to no machine
        and are not removed.
        """
        unknown = [entry for entry in entries if entry.machine is None and entry.host == host]
        asked = sorted(unknown, key=lambda each: each.start)[:_ASKED_MOST]
        known = {entry.name: replace(entry, machine=self._machine_of(entry.name)) for entry in asked}
        return [known.get(entry.name, entry) for entry in entries]

    def _machine_of(self, name: str) -> str:
        """Read the machine id in a window's manifest; '' if it cannot be read."""
        try:
            return read_manifest(self._place(name) / MANIFEST)[0].machine
        except BadData:
            return ""

    def _entry_of_folder(self, name: str) -> Entry | None:
        """Make the entry of a window folder from its files; None if it cannot be read."""
        folder = self._place(name)
        try:
            window = read_window(folder)
            said = json.loads(read_plain(folder / _VERDICT, budgets.FILE_BYTES_MOST))
            return _described(name, window, said, _size(folder))
        except (BadData, OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _write_index(self, entries: Sequence[Entry], place: int) -> None:
        """Replace the index file; `place`: descriptor of the open history folder."""
        table = pa.Table.from_pylist([asdict(entry) for entry in entries], INDEX)
        put_file(place, _INDEX, lambda file: pq.write_table(table, file, compression="zstd"))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the folder and take its lock; yields a descriptor of the folder."""
        try:
            with opened_folder(self.folder, make=True) as place:
                if os.fstat(place).st_uid == os.geteuid():
                    os.fchmod(place, 0o700)
                lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
                try:
                    if not take_lock(lock):
                        raise OutputFailed(f"the history {self.folder} is locked by another process")
                    with opened_folder(self.folder / _WINDOWS, make=True):
                        pass
                    yield place
                finally:
                    os.close(lock)
        except OSError as error:
            raise OutputFailed(f"cannot write the history {self.folder}: {error.strerror or error}") from error

    # ---- reading -----------------------------------------------------------------------------------------------------

    def entries(self, job: str | None = None, host: str | None = None) -> tuple[Entry, ...]:
        """Stored entries, oldest first.

        Empty if the history is missing, unreadable or not trusted.
        """
        if self.strange:
            return ()
        return tuple(sorted(self._read_index(job, host), key=lambda entry: (entry.start, entry.name)))

    @property
    def strange(self) -> str:
        """Reason not to trust the history (others could have written it).

        '' if it is safe or absent.
        """
        try:
            with opened_folder(self.folder), opened_folder(self.folder / _WINDOWS):
                return ""
        except UnsafePlace as error:
            return str(error)
        except OSError:
            return ""

    def window(self, entry: Entry) -> Window | None:
        """The window of an entry; None if it is gone or damaged."""
        try:
            return read_window(self._place(entry.name))
        except BadData:
            return None

    def _read_index(self, job: str | None = None, host: str | None = None) -> list[Entry]:
        """Read the entries of a job and a host (None: all).

        Rebuilt from the window folders if the index is missing or damaged.
        """
        # Read like a window's table: scanning a damaged file as a dataset can crash the process.
        try:
            rows = cast(with_absent(read_table(self.folder / _INDEX, INDEX), INDEX), INDEX).to_pylist()
        except (OSError, pa.ArrowException, KeyError, ValueError):
            return self._from_folders(job, host)
        # Ignore names that lead out of the folder.
        found = [entry for row in rows if "/" not in (entry := Entry(**row)).name and entry.name not in ("", ".", "..")]
        return [entry for entry in found if job in (None, entry.job) and host in (None, entry.host)]

    def _from_folders(self, job: str | None, host: str | None) -> list[Entry]:
        """Make the entries of a job and a host (None: all) from the window folders, without the index."""
        place = self.folder / _WINDOWS
        names = sorted(path.name for path in place.iterdir() if (path / MANIFEST).is_file()) if place.is_dir() else []
        found = [entry for name in names if (entry := self._entry_of_folder(name)) is not None]
        return [entry for entry in found if job in (None, entry.job) and host in (None, entry.host)]

    def _place(self, name: str) -> Path:
        """Path of the window folder of this name."""
        return self.folder / _WINDOWS / name


# ---- what an entry says ----------------------------------------------------------------------------------------------


def describe(name: str, window: Window, verdict: Verdict, size_bytes: int) -> Entry:
    """The index row of a window and its verdict."""
    return _described(name, window, json.loads(to_json(verdict)), size_bytes)


def _described(name: str, window: Window, verdict: dict[str, Any], size_bytes: int) -> Entry:
    """Make the index row of a window; `verdict`: as JSON data; `size_bytes`: on disk."""
    manifest = window.manifest
    job = manifest.jobs[0] if manifest.jobs else str(verdict["job"])
    roles = [str(role) for role in window.ranks["role"].to_pylist()]
    seconds = np.asarray(window.steps["seconds"].to_numpy(zero_copy_only=False), dtype=np.float64)
    seconds = seconds[np.isfinite(seconds) & (seconds > 0)]
    counts = np.unique(window.steps["rank"].to_numpy(zero_copy_only=False), return_counts=True)[1]
    suspects = [
        f"{suspect['component']}/{suspect['cause']} " + ",".join(str(rank) for rank in suspect["ranks"][:8])
        for suspect in verdict["suspects"][:4]
    ]
    return Entry(
        name=name,
        job=job,
        host=manifest.host,
        start=float(manifest.start),
        seconds=float(manifest.seconds),
        ranks=window.ranks.num_rows,
        world_size=max((int(size or 0) for size in window.ranks["world_size"].to_pylist()), default=0),
        roles=",".join(sorted(set(roles))),
        status=str(verdict["status"]),
        suspects="; ".join(suspects),
        peerless=len(roles) < 2 or (len(set(roles)) == len(roles) and "" not in roles),
        steps=int(np.median(counts)) if len(counts) else 0,
        step_p50=median(seconds) if len(seconds) else float("nan"),
        bytes=size_bytes,
        owner=owner_of(window, job),
        run=kind_of_run(window, job),
        machine=manifest.machine,
    )


def owner_of(window: Window, job: str) -> int:
    """User id of the job's owner; -1 if unknown or ambiguous."""
    ranks = window.ranks.select(("job", "owner")).to_pylist()
    owners = {int(row["owner"]) for row in ranks if row["job"] == job}
    return owners.pop() if len(owners) == 1 else -1


def _size(folder: Path) -> int:
    """Bytes on disk of the files in a folder, in whole blocks of 4 KiB."""
    total = 0
    for path in folder.iterdir():
        with suppress(OSError):
            total += -(-path.stat().st_size // 4096) * 4096
    return total
