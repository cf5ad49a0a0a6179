"""Forecasts of a plant's sensors: another shape of the lab's job, with the same options and files.

The log is text with many fields a line, parsed in plain Python; gaps are filled, the profile of a day taken out, windows cut. A recurrent
network says quantiles of the next hours. There is no wrapper around the model: after the backward pass the trainer itself sums the
gradients, flat bucket after flat bucket, and clips them. Every twenty-fifth step all average the loss that is logged.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import os
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

SENSORS, FULL_SCALE = 24, 65_535
LINE_BYTES = 110
LINES_PER_EFFORT = 4
DAY = 48  # lines: one each half hour
HISTORY, HORIZON, PATCH = 96, 8, 8
CALENDAR = 4
QUANTILES = (0.1, 0.5, 0.9)
WINDOWS_PER_ROW = 0.25
BUCKETS = 3
RATE, DECAY, MOST_NORM, RESTART_EVERY = 2e-3, 1e-4, 1.0, 400
LOGGED_EVERY, VALIDATED_EVERY = 25, 75

# What a byte of the log stands for: digits, commas, and now and then the mark of a broken sensor.
SYMBOLS = bytes(ord("#" if code == 255 else "," if code % 4 == 3 else str(code % 10)) for code in range(256))

log = logging.getLogger("forecast")
Batch = tuple[Tensor, Tensor]


class PlantLog:
    """The log of one rank's plant, read past the page cache."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._places = places(folder, block_bytes)

    def read_log(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        block = os.pread(fd, self._block_bytes, min(offset, size - self._block_bytes))
        slow["read_log"]()
        return block


def lines_of(block: bytes, count: int) -> Iterator[str]:
    text = block[: count * LINE_BYTES].translate(SYMBOLS).decode("ascii")
    for at in range(0, len(text) - LINE_BYTES + 1, LINE_BYTES):
        yield text[at : at + LINE_BYTES]


def parse_lines(lines: Iterable[str]) -> list[list[float]]:
    """Readings by line and sensor; what is no number, or more than a sensor can say, is a gap."""
    table = []
    for line in lines:
        readings = []
        for field in line.split(",", SENSORS)[:SENSORS]:
            try:
                value = float(field) if field else math.nan
            except ValueError:
                value = math.nan
            readings.append(value if value <= FULL_SCALE else math.nan)
        readings += [math.nan] * (SENSORS - len(readings))
        table.append(readings)
    slow["parse_lines"]()
    return table


def fill_gaps(table: list[list[float]]) -> np.ndarray:
    """Each gap takes the last reading before it; those at the beginning take the sensor's usual one."""
    readings = np.log1p(np.asarray(table, dtype=np.float32))
    known = ~np.isnan(readings)
    last = np.where(known, np.arange(len(readings))[:, None], -1)
    np.maximum.accumulate(last, axis=0, out=last)
    usual = np.nan_to_num(readings).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    filled = np.where(last >= 0, np.take_along_axis(readings, np.maximum(last, 0), axis=0), usual)
    slow["fill_gaps"]()
    return filled.astype(np.float32)


class Seasons:
    """What is known of the time of day, with a memory of the profile that past blocks had."""

    def __init__(self) -> None:
        self._profile = np.zeros((DAY, SENSORS), dtype=np.float32)
        hours = 2 * math.pi * np.arange(DAY) / DAY
        waves = (np.sin(hours), np.cos(hours), np.sin(2 * hours), np.cos(2 * hours))
        self._calendar = np.stack(waves, axis=1).astype(np.float32)

    def take_out_profile(self, readings: np.ndarray) -> np.ndarray:
        days = len(readings) // DAY
        seen = readings[: days * DAY].reshape(days, DAY, SENSORS).mean(axis=0)
        self._profile += 0.1 * (seen - self._profile)
        rest = readings - np.resize(self._profile, readings.shape)
        low, middle, high = np.percentile(rest, (25, 50, 75), axis=0)
        slow["take_out_profile"]()
        return ((rest - middle) / (high - low + 1e-3)).astype(np.float32)

    def add_calendar(self, readings: np.ndarray) -> np.ndarray:
        calendar = np.resize(self._calendar, (len(readings), CALENDAR))
        table = np.concatenate((readings, calendar), axis=1)
        slow["add_calendar"]()
        return table


def cut_windows(table: np.ndarray, count: int, rng: np.random.Generator) -> Batch:
    """(what was, what came next) from so many places of the table."""
    begins = rng.integers(0, len(table) - HISTORY - HORIZON + 1, count)
    windows = table[begins[:, None] + np.arange(HISTORY + HORIZON)]
    history = torch.from_numpy(np.ascontiguousarray(windows[:, :HISTORY]))
    future = torch.from_numpy(np.ascontiguousarray(windows[:, HISTORY:, :SENSORS]))
    slow["cut_windows"]()
    return history, future


class Feed:
    """Windows of one rank without end, from its own hands or from those of its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._lines, self._windows = LINES_PER_EFFORT * args.crops, args.batch * WINDOWS_PER_ROW
        self._log = PlantLog(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._seasons, self._rng = Seasons(), np.random.default_rng(rank)
        self._watch = watch
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self.length = 1.0
        self._has_workers = args.workers > 0
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def __iter__(self) -> Iterator[Batch]:
        while True:
            with self._watch.part("load"):
                found = self.loader.next_batch() if self._has_workers else self._log.read_log()
            with self._watch.part("prepare"):
                batch = found if self._has_workers else self._windows_of(found, self.length)
            yield batch

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._windows_of(self._log.read_log(), 1.0)

    def _windows_of(self, block: bytes, length: float) -> Batch:
        lines = max(HISTORY + HORIZON + DAY, int(self._lines * length))
        readings = fill_gaps(parse_lines(lines_of(block, lines)))
        table = self._seasons.add_calendar(self._seasons.take_out_profile(readings))
        return cut_windows(table, int(self._windows * length), self._rng)


class Forecaster(nn.Module):
    """Four hours become one token, a recurrent layer reads the tokens, a perceptron says all quantiles at once."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = width // 6
        self.embed = nn.Conv1d(SENSORS + CALENDAR, 48, PATCH, stride=PATCH)
        self.memory = nn.GRU(48, hidden, batch_first=True)
        self.decoder = nn.Sequential(
            nn.Linear(hidden, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, HORIZON * SENSORS),
        )  # fmt: skip
        self.spread = nn.Linear(hidden, len(QUANTILES) * SENSORS)

    def forward(self, history: Tensor) -> Tensor:
        tokens = torch.relu(self.embed(history.transpose(1, 2))).transpose(1, 2)
        state = self.memory(tokens)[0][:, -1]
        middle = self.decoder(state).view(-1, HORIZON, 1, SENSORS)
        return middle + self.spread(state).view(-1, 1, len(QUANTILES), SENSORS)


def pinball_loss(said: Tensor, future: Tensor) -> Tensor:
    missed = future.unsqueeze(2) - said
    quantiles = torch.tensor(QUANTILES).view(1, 1, -1, 1)
    return torch.maximum(quantiles * missed, (quantiles - 1) * missed).mean()


class GradientReducer:
    """Averages the gradients of all ranks, in a few flat buckets of about the same size."""

    def __init__(self, parameters: Iterable[nn.Parameter], world: int) -> None:
        self._world = world
        parameters = list(parameters)
        sizes = itertools.accumulate(one.numel() for one in parameters)
        most = sum(one.numel() for one in parameters) / BUCKETS
        numbered = [(min(BUCKETS - 1, int(end / most)), one) for end, one in zip(sizes, parameters, strict=True)]
        grouped = itertools.groupby(numbered, key=lambda pair: pair[0])
        self._buckets = [[one for _, one in group] for _, group in grouped]

    @torch.no_grad()
    def reduce(self) -> None:
        for bucket in self._buckets:
            gradients = [one.grad for one in bucket]
            flat = _flatten_dense_tensors(gradients)
            dist.all_reduce(flat)
            flat /= self._world
            for gradient, averaged in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
                gradient.copy_(averaged)


class Progress:
    """What is known of the training so far, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._losses: list[float] = []

    def track(self, loss: float) -> None:
        with self._lock:
            self._losses.append(loss)
            del self._losses[:-LOGGED_EVERY]
        slow["track"]()

    def mean(self) -> Tensor:
        return torch.tensor(self._losses).mean()


class Trainer:
    def __init__(self, args: argparse.Namespace, rank: int, world: int, watch: Stopwatch) -> None:
        self.rank, self.world, self.watch = rank, world, watch
        self._jitter = random.Random(rank)
        self.start_anew(args.width, args.device_ms / 1000)

    def start_anew(self, width: int, device_s: float) -> None:
        self.device_s = device_s
        self.model = Forecaster(width)
        for one in self.model.parameters():
            dist.broadcast(one.data, src=0)
        self.reducer = GradientReducer(self.model.parameters(), self.world)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=DECAY)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, RESTART_EVERY)

    def fit(self, batch: Batch, length: float) -> float:
        history, future = batch
        with self.watch.part("forward"):
            loss = pinball_loss(self.model(history), future)
        with self.watch.part("device"):
            device_wait(self.device_s * length * self._jitter.uniform(0.98, 1.02))
        with self.watch.part("backward"):
            loss.backward()
            self.reducer.reduce()
        with self.watch.part("optimizer"):
            nn.utils.clip_grad_norm_(self.model.parameters(), MOST_NORM)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def over_all_ranks(self, figure: Tensor) -> float:
        with self.watch.part("backward"):
            dist.all_reduce(figure)
        return float(figure) / self.world

    @torch.no_grad()
    def validate(self, kept: Batch) -> float:
        """The share of readings between the outer quantiles; four fifths where these are right."""
        with self.watch.part("forward"):
            said = self.model(kept[0])
            covered = (said[:, :, 0] <= kept[1]) & (kept[1] <= said[:, :, -1])
        with self.watch.part("device"):
            device_wait(self.device_s / 4)
        return self.over_all_ranks(covered.float().mean())


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    level = logging.INFO if rank == 0 else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s")
    control = Control(args.dir / f"rank{rank}.control")
    watch = Stopwatch(Recorder(args.dir / f"rank{rank}.steps"))
    features, lengths, feed = features_of(args, rank), Lengths(rank, world), Feed(args, rank, watch)
    trainer, progress = Trainer(args, rank, world, watch), Progress(features.metrics_thread.lock)
    batches, kept = iter(feed), None
    for step in range(args.steps) if args.steps else itertools.count():
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, feed.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            trainer.start_anew(control.orders["width"], args.device_ms / 1000 * control.orders["device"])
        feed.length = lengths.of_step(step)
        batch = next(batches)
        kept = kept or batch
        with watch.part("prepare"):
            features.before_forward()
        progress.track(trainer.fit(batch, feed.length))
        if step % LOGGED_EVERY == LOGGED_EVERY - 1:
            loss, (rate,) = trainer.over_all_ranks(progress.mean()), trainer.scheduler.get_last_lr()
            log.info("step %d loss %.4f lr %.2e", step, loss, rate)
        if step % VALIDATED_EVERY == VALIDATED_EVERY - 1:
            log.info("step %d coverage %.3f", step, trainer.validate(kept))
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
