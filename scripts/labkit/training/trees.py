"""Boosting with decision stumps over many ranks: another shape of the lab's job, with the same options and files.

Nothing here has gradients or a backward pass: histograms are summed over the ranks, the split is drawn by rank 0 and broadcast, and
every rank counts its rows on either side, which all are told.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from torch import Tensor

COLUMNS, BINS = 64, 32
LEARNING = 0.1


class Rows:
    """The table of one rank, read in blocks past the page cache."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._places = places(folder, block_bytes)

    def draw_rows(self, length: float) -> np.ndarray:
        file, offset, size = next(self._places)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        wanted = int(self.block_bytes * length) // COLUMNS * COLUMNS
        block = os.pread(file, wanted, min(offset, size - wanted))
        slow["draw_rows"]()
        return np.frombuffer(block, dtype=np.uint8).reshape(-1, COLUMNS)


def bin_rows(rows: np.ndarray, count: int) -> np.ndarray:
    binned = (rows[:count] // (256 // BINS)).astype(np.int64)
    slow["bin_rows"]()
    return binned


class Ensemble:
    """The stumps so far: column, bin and the values on both sides of each."""

    def __init__(self, width: int) -> None:
        self.stumps: list[tuple[int, int, float]] = []
        self.parts = max(1, width // 48)

    def residuals(self, binned: np.ndarray, effort: int) -> np.ndarray:
        goal = binned[:, :8].sum(1) % 7 / 7.0
        for column, edge, value in self.stumps[-effort:]:
            goal = goal - np.where(binned[:, column] < edge, value, -value)
        slow["residuals"]()
        return goal

    def histogram(self, binned: np.ndarray, goal: np.ndarray) -> Tensor:
        """Sum of the goal by part of the rows, column and bin."""
        found = np.zeros((self.parts, COLUMNS, BINS))
        for part, (rows, goals) in enumerate(
            zip(np.array_split(binned, self.parts), np.array_split(goal, self.parts), strict=True)
        ):
            for column in range(0, COLUMNS, 4):
                found[part, column] = np.bincount(rows[:, column], weights=goals, minlength=BINS)
        slow["histogram"]()
        return torch.from_numpy(found)

    def grow(self, split: Tensor) -> None:
        column, edge, value = split.tolist()
        self.stumps = [*self.stumps[-199:], (int(column), int(edge), value)]
        slow["grow"]()


def best_split(histogram: Tensor) -> Tensor:
    sums = histogram.sum(0).cumsum(1).abs()
    place = int(sums.argmax())
    return torch.tensor([place // BINS, place % BINS, LEARNING * float(sums.max()) / (1 + float(sums.sum()))])


class Notes:
    """How the rounds went, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.shares: dict[int, float] = {}

    def note(self, step: int, share: float) -> None:
        with self.lock:
            self.shares[step % 1000] = share
        slow["note"]()


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    table = Rows(args.data / f"rank{rank}", args.sample_kib * 1024)
    control, its_control = (Control(args.dir / f"rank{rank}.control") for _ in range(2))
    recorder = Recorder(args.dir / f"rank{rank}.steps")
    features, lengths = features_of(args, rank), Lengths(rank, world)
    notes, jitter = Notes(features.metrics_thread.lock), random.Random(rank)
    ensemble, device_s = Ensemble(args.width), args.device_ms / 1000

    def batch(length: float) -> tuple[Tensor, Tensor]:
        binned = bin_rows(table.draw_rows(length), int(32 * args.batch * length))
        return torch.from_numpy(binned), torch.empty(0)

    def make_batch(number: int) -> tuple[Tensor, Tensor]:
        its_control.poll(number)
        return batch(1.0)

    loader = Loader(make_batch, args.workers)
    loader.follow({})
    for step in range(args.steps) if args.steps else itertools.count():
        if control.poll(step):
            for part in (features, lengths, loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            ensemble, device_s = Ensemble(control.orders["width"]), args.device_ms / 1000 * control.orders["device"]
        length = lengths.of_step(step)
        marks, cpu = [time.monotonic()], time.process_time()
        binned = (loader.next_batch() if args.workers else batch(length))[0].numpy()
        marks.append(time.monotonic())
        features.before_forward()
        marks.append(time.monotonic())
        histogram = ensemble.histogram(binned, ensemble.residuals(binned, args.crops))
        marks.append(time.monotonic())
        device_wait(device_s * length * jitter.uniform(0.98, 1.02))
        marks.append(time.monotonic())
        dist.all_reduce(histogram)
        split = best_split(histogram)
        dist.broadcast(split, 0)
        counts = [torch.zeros(1) for _ in range(world)]
        dist.all_gather(counts, torch.tensor([float((binned[:, int(split[0])] < int(split[1])).mean())]))
        marks.append(time.monotonic())
        ensemble.grow(split)
        marks.append(time.monotonic())
        notes.note(step, float(sum(counts)))
        features.after_step(step)
        marks.append(time.monotonic())
        recorder.write(step, marks, time.process_time() - cpu)


if __name__ == "__main__":
    run(train)
