"""What is read back from disks: the history's index and verdicts, the sweep's database."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from contextlib import closing
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from campaignkit.fuzz.place import place
from campaignkit.fuzz.target import Target
from campaignkit.fuzz.targets.windows import sample
from rankscope.diagnose.infer.past.history import INDEX, History
from rankscope.diagnose.severity import CRITICAL, OK
from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.store import open_store
from rankscope.diagnose.sweep.trends import trends


def _history(data: bytes) -> None:
    home = place() / "history"
    home.mkdir(exist_ok=True, mode=0o700)
    (home / "index.parquet").write_bytes(data)
    history = History(home)
    for entry in (*history.entries(), *history.entries(job="j", host="h")):
        history.window(entry)


def _indexes() -> list[bytes]:
    found = []
    for compression in ("none", "zstd"):
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_batches(sample(INDEX).to_batches()), buffer, compression=compression)
        found.append(buffer.getvalue())
    return found


_FINDINGS = (
    Finding("disk.full", OK, "/", "statvfs", 7.0, "%", "", "", ""),
    Finding("os.kmsg", CRITICAL, "x", "", 1.0, "/h", "", "", ""),
)
SWEEP = Sweep(
    "h", 1e9, 77.0, "b", 0.1, 0.1, _FINDINGS, (), 0, 2, (("disk.full", "n", 7.0),), (("disk.full", "w", "x"),)
)  # fmt: skip


def _store(data: bytes) -> None:
    """A database that is read, written and read again, as one sweep after the other does it."""
    home = place() / "sweep"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    (home / "sweep.db").write_bytes(data)
    (home / "sweep.db").chmod(0o600)
    with open_store(home) as store:
        earlier = store.earlier()
        for identifier, key in list(earlier.counters)[:8]:
            Context(identifier, {}, now_s=1e9, uptime_s=77.0, boot="b", earlier=earlier).grown(key, 3.0)
        store.save(SWEEP, ("disk.full",), 30.0)
        trends(store.history(0.0, SWEEP.time_s), SWEEP.time_s)
        json.dumps(store.notes)


@lru_cache(maxsize=1)
def _databases() -> list[bytes]:
    home = place() / "seed"
    home.mkdir(mode=0o700)
    path = home / "sweep.db"
    path.touch(mode=0o600)
    with closing(
        sqlite3.connect(path, isolation_level=None)
    ) as empty:  # small pages: what is in them is changed more often
        empty.execute("PRAGMA page_size = 512")
        empty.execute("VACUUM")
    with open_store(home) as store:
        store.save(SWEEP, ("disk.full", "os.kmsg"), 30.0)
    return [path.read_bytes()]


TARGETS = (
    Target(
        "history",
        "the index of the history",
        _history,
        _indexes,
        longest_bytes=16384,
        words=(b"PAR1", b"\x15\x00", b"\xff\xff\xff\xff\x0f"),
    ),
    Target(
        "sweep-store",
        "the sweep's database",
        _store,
        _databases,
        longest_bytes=65536,
        words=(b"\xff" * 8, b"CREATE TABLE ", b"\0\0\0\1"),
    ),
)
