"""Ways in which a rank of a training script stops for ever, and what only looks like it. Off until an order asks for it.

Orders: {"stuck": {"how": …}}, followed at the end of the first step after the order; with "at": n, of step n, so that all ranks do it in
the same one. How:

  loop      a condition that never becomes true is asked for again and again     hold      a regular expression, in C, that holds the GIL
  feeder    from now on an item of a process of its own in each step             open, read   a file of `path`; a page of it
  grow      memory, until the kernel ends it                                     skip, other, larger   the report: see Reports
  evaluate  batch after batch for `seconds`                                      compute   one call for `seconds`
  save      the first rank writes for `seconds`, and all wait for it             finish    the job ends
  validate  the first rank runs a model for `seconds`, and all wait for it

It knows nothing of rankscope.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import re
import select
import threading
import time
from pathlib import Path
from typing import Any

_ENDLESS = re.compile("(a+)+$")  # backtracks for longer than anybody waits
_GROWTH = 64 << 20
_CHUNK = 1 << 20


class Reports:
    """Figures that all ranks add up after each step, in a group of their own, as scripts do for logs.

    A report that one rank leaves out, makes by another operation, or with a larger tensor, is a hang: the others wait in it, and the
    rank waits elsewhere.
    """

    def __init__(self, values: int) -> None:
        self._values = values
        self._group: Any = None
        if values:
            import torch.distributed as dist

            self._group = dist.new_group()

    def send(self, how: str = "") -> None:
        if self._values and how != "skip":
            self.share_report(how)

    def share_report(self, how: str) -> None:
        import torch
        import torch.distributed as dist

        figures = torch.zeros(self._values * (2 if how == "larger" else 1))
        if how == "other":
            parts = [torch.zeros_like(figures) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, figures, group=self._group)
        else:
            dist.all_reduce(figures, group=self._group)


class Feeder:
    """Items made by a process, taken from its queue. Nobody looks whether it lives."""

    def __init__(self, note: Path) -> None:
        self._items: Any = multiprocessing.get_context("fork").Queue(2)
        self._process = multiprocessing.get_context("fork").Process(target=self.produce, daemon=True)
        self._process.start()
        note.write_text(str(self._process.pid))

    def produce(self) -> None:
        while True:
            self._items.put(bytes(1024))

    def next_item(self) -> bytes:
        item: bytes = self._items.get()
        return item


class Validation:
    """A small recogniser of words, and how well it does."""

    def __init__(self) -> None:
        import torch

        nn = torch.nn
        self._torch = torch
        self._hear = nn.Sequential(
            nn.Conv1d(20, 32, 5, padding=2), nn.BatchNorm1d(32), nn.GELU(), nn.MaxPool1d(2), nn.Dropout(0.1),
            nn.Conv1d(32, 48, 3, padding=1), nn.GroupNorm(4, 48), nn.SiLU(), nn.AvgPool1d(2),
        ).eval()  # fmt: skip
        self._follow = nn.GRU(48, 32, batch_first=True).eval()
        self._spell = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 29), nn.LogSoftmax(-1)).eval()
        self.wrong = self.words = 0

    def batch(self) -> None:
        with self._torch.no_grad():
            sound = self._torch.randn(4, 20, 64)
            heard, _ = self._follow(self._hear(sound).transpose(1, 2))
            spelt = self._spell(heard).argmax(-1).tolist()
        for letters in spelt:
            word, truth = self.collapse(letters), letters[::3]
            self.wrong += self.distance(word, truth) > 2
            self.words += 1

    def collapse(self, letters: list[int]) -> list[int]:
        return [one for place, one in enumerate(letters) if one and (place == 0 or one != letters[place - 1])]

    def distance(self, one: list[int], other: list[int]) -> int:
        row = list(range(len(other) + 1))
        for place, letter in enumerate(one, 1):
            before, row[0] = row[0], place
            for number, each in enumerate(other, 1):
                before, row[number] = row[number], min(row[number] + 1, row[number - 1] + 1, before + (letter != each))
        return row[-1]


class Stuck:
    """Follows the order, once."""

    def __init__(self, place: Path, reports: int = 0) -> None:
        self._place = place
        self._order: dict[str, Any] = {}
        self._done: dict[str, Any] = {}
        self._file = -1
        self._feeder: Feeder | None = None
        self._reports = Reports(reports)
        self.ready = False
        self.tries = 0

    def follow(self, order: dict[str, Any] | None) -> None:
        self._order = order or {}
        how = self._order.get("how")
        if how == "open":
            self._file = os.open(self._order["path"], os.O_RDONLY)
        elif how == "feeder" and self._feeder is None:
            self._feeder = Feeder(self._place.with_suffix(".feeder"))

    def after_step(self, step: int) -> None:
        order, how = self._order, str(self._order.get("how", ""))
        due = bool(order) and order != self._done and step >= order.get("at", step)
        if due:
            self._done = order
        self._reports.send(how if due and how in ("skip", "other", "larger") else "")
        if self._feeder is not None:
            self._feeder.next_item()
        if due and how in _WAYS:
            _WAYS[how](self)

    def wait_for_flag(self) -> None:
        while not self.ready:
            self.tries += 1

    def check_names(self) -> None:
        """In a thread beside the training, as a check of a data set would be."""
        _ENDLESS.match("a" * 64 + "b")

    def start_check(self) -> None:
        threading.Thread(target=self.check_names, name="checker", daemon=True).start()

    def read_page(self) -> bytes:
        return os.pread(self._file, 4096, 0)

    def grow_table(self) -> None:
        kept = []
        while True:
            kept.append(mmap.mmap(-1, _GROWTH))
            view = memoryview(kept[-1])
            view[:: mmap.PAGESIZE] = bytes(_GROWTH // mmap.PAGESIZE)

    def evaluate(self) -> None:
        until = time.monotonic() + self._order["seconds"]
        while time.monotonic() < until:
            select.select([], [], [], 0.05)  # as long as the device takes for a batch
            sum(range(20_000))

    def compute(self) -> None:
        """One long call, as of a sequence that is longer than any before."""
        select.select([], [], [], self._order["seconds"])

    def save_state(self) -> None:
        """The first rank writes, and all wait until it has."""
        import torch.distributed as dist

        if dist.get_rank() == 0:
            until, state = time.monotonic() + self._order["seconds"], bytes(_CHUNK)
            with contextlib.suppress(OSError), self._place.with_suffix(".state").open("wb", buffering=0) as file:
                while time.monotonic() < until:
                    file.seek(0)
                    for _ in range(8):
                        file.write(state)
                    os.fsync(file.fileno())
        dist.barrier()

    def validate(self) -> None:
        """The first rank runs another model over a set that is kept aside, and all wait until it has."""
        import torch.distributed as dist

        if dist.get_rank() == 0:
            until, check = time.monotonic() + self._order["seconds"], Validation()
            while time.monotonic() < until:
                check.batch()
        dist.barrier()

    def finish(self) -> None:
        raise SystemExit


_WAYS = {
    "loop": Stuck.wait_for_flag,
    "hold": Stuck.start_check,
    "read": Stuck.read_page,
    "grow": Stuck.grow_table,
    "evaluate": Stuck.evaluate,
    "compute": Stuck.compute,
    "save": Stuck.save_state,
    "validate": Stuck.validate,
    "finish": Stuck.finish,
}
