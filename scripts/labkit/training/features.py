"""What training scripts have beside the model: a metrics thread, memory housekeeping, scratch buffers, a table, checkpoints.

All of it is off until an order in the control file, or an argument, asks for it. It knows nothing of rankscope.
"""

from __future__ import annotations

import gc
import itertools
import json
import mmap
import os
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

PAGE = mmap.PAGESIZE
_SCRATCH_CHUNK = 32 << 20
_SCRATCH_MOST = 1 << 30
_FIGURES = 4000
_HEAP_OBJECTS = 100_000


class MetricsThread:
    """A thread that uploads metrics, started by the first order for it.

    Orders: {"upload": {"encode_s": x}} turns so many figures into text after each step that it takes x seconds;
    {"upload": {"hold_s": x, "idle_s": y}} holds the lock of the metrics for x, and leaves it alone for y.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._order: dict[str, float] | None = None
        self._step_done = threading.Event()
        self._history: list[float] = []
        self._thread: threading.Thread | None = None

    def follow(self, order: dict[str, float] | None) -> None:
        self._order = order
        if order and "encode_s" in order:
            self._history = [number / 7 for number in range(_FIGURES)]
            self._history *= max(
                1, round(order["encode_s"] / statistics.median(_seconds_of(self.encode) for _ in range(3)))
            )
        if order and self._thread is None:
            self._thread = threading.Thread(target=self.run, daemon=True)
            self._thread.start()

    def step_done(self) -> None:
        if self._order:
            self._step_done.set()

    def run(self) -> None:
        while True:
            order = self._order or {}
            if "hold_s" in order:
                self.upload(order["hold_s"])
                time.sleep(order["idle_s"])
            elif self._step_done.wait(timeout=0.5):
                self._step_done.clear()
                if "encode_s" in order:
                    self.encode()

    def upload(self, seconds: float) -> None:
        """Send what there is, with the metrics locked."""
        with self.lock:
            time.sleep(seconds)

    def encode(self) -> None:
        """Turn the history into text: one call into C, which gives nobody the GIL before it ends."""
        json.dumps(self._history)


class Housekeeping:
    """Order {"collect_s": x}: a heap of small records, and a full collection of garbage x seconds long in each step."""

    def __init__(self) -> None:
        self._records: list[list[int]] = []
        self._times = 0

    def follow(self, seconds: float | None) -> None:
        if not seconds:
            if self._records:
                self._records = []
                self._times = 0
                gc.unfreeze()
            return
        gc.freeze()  # so that a collection takes what the records take, whatever torch keeps
        self._records = [[number] for number in range(_HEAP_OBJECTS)]
        self._times = max(1, round(seconds / statistics.median(_seconds_of(gc.collect) for _ in range(5))))

    def release_memory(self) -> None:
        for _ in range(self._times):
            gc.collect()


class Scratch:
    """Order {"scratch_s": x}: buffers allocated, touched and given back in each step, so many that it takes x seconds."""

    def __init__(self) -> None:
        self._bytes = 0

    def follow(self, seconds: float | None) -> None:
        self._bytes = 0
        if seconds:
            self._bytes = _SCRATCH_CHUNK
            usual = statistics.median(_seconds_of(self.stage_buffers) for _ in range(3))
            self._bytes = min(int(seconds / usual * _SCRATCH_CHUNK), _SCRATCH_MOST)

    def stage_buffers(self) -> None:
        for size in (*(_SCRATCH_CHUNK,) * (self._bytes // _SCRATCH_CHUNK), self._bytes % _SCRATCH_CHUNK // PAGE * PAGE):
            if size:
                buffer = mmap.mmap(-1, size)
                view = memoryview(buffer)
                view[::PAGE] = bytes(size // PAGE)
                view.release()
                buffer.close()


class Table:
    """A vocabulary on disk, mapped into memory; each step looks up some of its pages at random."""

    def __init__(self, path: Path | None, lookups: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lookups = lookups if path else 0
        self._pages = 0
        if path:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self._map.madvise(mmap.MADV_RANDOM)
            self._pages = len(self._map) // PAGE
            sum(self._map[::PAGE])  # in memory from the start

    def look_up(self) -> int:
        pages = self._rng.choices(range(self._pages), k=self._lookups) if self._lookups else ()
        return sum(self._map[page * PAGE] for page in pages)


class Checkpoints:
    """Every so many steps this rank's part of the state goes to disk, past the page cache."""

    def __init__(self, path: Path | None, every: int, kib: int) -> None:
        self._every = every if path else 0
        if path and every:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_DSYNC, 0o600)
            self._state = mmap.mmap(-1, kib << 10)  # page-aligned, as O_DIRECT asks for

    def after_step(self, step: int) -> None:
        if self._every and step % self._every == self._every - 1:
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        os.pwrite(self._fd, self._state, 0)


class Features:
    """All of the above, following one set of orders."""

    def __init__(self, table: Table, checkpoints: Checkpoints, report_bytes: int) -> None:
        self.metrics_thread = MetricsThread()
        self.housekeeping = Housekeeping()
        self.scratch = Scratch()
        self.table = table
        self.checkpoints = checkpoints
        self._report = "." * max(0, report_bytes - 1)

    def follow(self, orders: dict[str, Any]) -> None:
        self.metrics_thread.follow(orders.get("upload"))
        self.housekeeping.follow(orders.get("collect_s"))
        self.scratch.follow(orders.get("scratch_s"))

    def before_forward(self) -> None:
        self.table.look_up()
        self.scratch.stage_buffers()

    def after_step(self, step: int) -> None:
        self.housekeeping.release_memory()
        self.checkpoints.after_step(step)
        if self._report:
            self.print_report()
        self.metrics_thread.step_done()

    def print_report(self) -> None:
        print(self._report, flush=True)


class Lengths:
    """How long this rank's sequences are, as a multiple of the usual.

    Orders: {"length": x} always x times as long; {"in_turn": x} x times as long on one rank a step, drawn by lot.
    """

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._always, self._in_turn = 1.0, 1.0

    def follow(self, orders: dict[str, Any]) -> None:
        self._always, self._in_turn = orders.get("length", 1.0), orders.get("in_turn", 1.0)

    def of_step(self, step: int) -> float:
        if self._in_turn != 1.0 and random.Random(step).randrange(self._world) == self._rank:
            return float(self._in_turn)
        return float(self._always)


def places(folder: Path, sample_bytes: int) -> itertools.cycle[tuple[int, int, int]]:
    """(file, offset, size of the file) of each sample in a folder, for ever; read without read-ahead."""
    files = [os.open(path, os.O_RDONLY) for path in sorted(folder.iterdir())]
    found = []
    for fd in files:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        size = os.fstat(fd).st_size
        found += [(fd, at, size) for at in range(0, size - sample_bytes + 1, sample_bytes)]
    return itertools.cycle(found)


def _seconds_of(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
