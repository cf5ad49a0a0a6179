"""Fraud in card payments, by what an account did before: another shape of the lab's job, with the same options and files.

A thread reads the ledger ahead, one block in advance. Payments are grouped by account and counted over the last hours in plain Python, and
a recurrent network judges the histories. The loss is scaled, and before each update all say whether their gradients are finite; then the
sums of each block of the model are on their way at once, and a block is updated as soon as its own are there. The learning rate goes in
waves, weights are averaged along the way, and every tenth step all count what was caught.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
import math
import os
import queue
import random
import threading
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

ACCOUNTS, MERCHANTS, COUNTRIES, CHANNELS = 160, 2000, 12, 4
RECORD = np.dtype(
    [("account", "u1"), ("merchant", "<u2"), ("amount", "<u2"), ("minute", "<u2"), ("country", "u1"), ("channel", "u1")]
)
RECORDS_PER_EFFORT, HISTORY, ROWS_PER_HISTORY = 24, 10, 2
RECENT_MINUTES, MANY = 6000, 3  # what counts as recently, and how many payments then are many
BINS = 32
FIGURES = 5
FRAUD_SHARE = 0.3  # of the histories in a batch, whatever their share of the ledger
BLOCKS_AHEAD = 1
IN_FORWARD = 0.35  # of the time on the device
RATE, WAVE, MOST_NORM = 2e-3, 200, 1.0
FIRST_SCALE, LARGEST_SCALE, GROWS_EVERY = 2.0**10, 2.0**16, 200
AVERAGED_OVER = 100
COUNTED_EVERY, LOGGED_EVERY = 10, 50

log = logging.getLogger("payments")
Batch = tuple[Tensor, Tensor, Tensor]  # numbers of what was bought where, figures, whether it was fraud


class Payment(NamedTuple):
    account: int
    merchant: int
    amount: int
    minute: int
    country: int
    channel: int


class Ledger:
    """The payments of this rank's share of the accounts, read past the page cache."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._places = places(folder, block_bytes)

    def read_ledger(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        block = os.pread(fd, self._block_bytes, min(offset, size - self._block_bytes))
        slow["read_ledger"]()
        return block


class ReadAhead:
    """A thread that has the next block in memory before it is wanted."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._blocks: queue.Queue[bytes] = queue.Queue(BLOCKS_AHEAD)
        threading.Thread(target=self._fill, name="read-ahead", daemon=True).start()

    def _fill(self) -> None:
        while True:
            self._blocks.put(self._ledger.read_ledger())

    def next_block(self) -> bytes:
        return self._blocks.get()


def decode_payments(block: bytes, count: int) -> list[Payment]:
    records = np.frombuffer(block, dtype=RECORD, count=min(count, len(block) // RECORD.itemsize)).copy()
    for name, kinds in (("account", ACCOUNTS), ("merchant", MERCHANTS), ("country", COUNTRIES), ("channel", CHANNELS)):
        records[name] %= kinds
    payments = [Payment(*fields) for fields in records.tolist()]
    slow["decode_payments"]()
    return payments


def group_by_account(payments: list[Payment]) -> list[list[Payment]]:
    """Each account's payments as they came."""
    accounts: dict[int, list[Payment]] = defaultdict(list)
    for payment in payments:
        accounts[payment.account].append(payment)
    grouped = [sorted(accounts[account], key=lambda payment: payment.minute) for account in sorted(accounts)]
    slow["group_by_account"]()
    return grouped


def count_velocity(grouped: list[list[Payment]]) -> list[list[tuple[float, ...]]]:
    """What each payment looks like beside those shortly before it: how many, how much, how many countries, how long ago."""
    found = []
    for payments in grouped:
        figures, recent, spent = [], deque[Payment](), 0
        countries: Counter[int] = Counter()
        before = payments[0].minute
        for payment in payments:
            recent.append(payment)
            spent += payment.amount
            countries[payment.country] += 1
            while recent[0].minute < payment.minute - RECENT_MINUTES:
                gone = recent.popleft()
                spent -= gone.amount
                countries[gone.country] -= 1
                if not countries[gone.country]:
                    del countries[gone.country]
            usual = spent / len(recent)
            waited = math.log1p(payment.minute - before) / 10
            figures.append((len(recent) / 8, usual / 65536, payment.amount / (usual + 1), len(countries) / 4, waited))
            before = payment.minute
        found.append(figures)
    slow["count_velocity"]()
    return found


def bin_amounts(grouped: list[list[Payment]]) -> list[list[int]]:
    """By the quantiles of this batch."""
    amounts = sorted(payment.amount for payments in grouped for payment in payments)
    edges = [amounts[len(amounts) * number // BINS] for number in range(1, BINS)]
    binned = [[bisect_right(edges, payment.amount) for payment in payments] for payments in grouped]
    slow["bin_amounts"]()
    return binned


def flag_chargebacks(grouped: list[list[Payment]], velocity: list[list[tuple[float, ...]]]) -> list[list[int]]:
    """Which were claimed back: large ones in a hurry, and cards that are in many places at once."""
    flags = []
    for payments, figures in zip(grouped, velocity, strict=True):
        flags.append([
            int(count * 8 > MANY and (larger > 1.5 or places * 4 > MANY) and payment.channel != 0)
            for payment, (count, _, larger, places, _) in zip(payments, figures, strict=True)
        ])  # fmt: skip
    slow["flag_chargebacks"]()
    return flags


def draw_histories(flags: list[list[int]], count: int, dice: random.Random) -> list[tuple[int, int]]:
    """(account, payment) of which the history is asked: frauds are rare, and drawn more often for that."""
    frauds, others = [], []
    for account, its_flags in enumerate(flags):
        for number, flag in enumerate(its_flags):
            (frauds if flag else others).append((account, number))
    wanted = min(count, int(FRAUD_SHARE * count + dice.random())) if frauds else 0
    drawn = dice.choices(frauds, k=wanted) if wanted else []
    drawn += dice.choices(others or frauds, k=count - wanted)
    slow["draw_histories"]()
    return drawn


def pad_histories(
    drawn: list[tuple[int, int]], length: int, grouped: list[list[Payment]], bins: list[list[int]],
    velocity: list[list[tuple[float, ...]]], flags: list[list[int]],
) -> Batch:  # fmt: skip
    """The last so many payments up to the one that is asked; where an account is newer, nothing before."""
    numbers = np.zeros((len(drawn), length, 4), dtype=np.int64)
    figures = np.zeros((len(drawn), length, FIGURES), dtype=np.float32)
    for row, (account, last) in enumerate(drawn):
        since = max(0, last + 1 - length)
        begin = length - (last + 1 - since)
        for at, payment in enumerate(grouped[account][since : last + 1], begin):
            numbers[row, at] = payment.merchant, payment.country, payment.channel, 0
        numbers[row, begin:, 3] = bins[account][since : last + 1]
        figures[row, begin:] = velocity[account][since : last + 1]
    frauds = torch.tensor([float(flags[account][last]) for account, last in drawn])
    batch = torch.from_numpy(numbers), torch.from_numpy(figures), frauds
    slow["pad_histories"]()
    return batch


class Histories:
    """Batches of one rank, from blocks that are read ahead or from its workers, which read for themselves."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._records, self._count = RECORDS_PER_EFFORT * args.crops, args.batch // ROWS_PER_HISTORY
        self._ledger = Ledger(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._dice, self._watch = random.Random(rank), watch
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})
        self._ahead = None if args.workers else ReadAhead(self._ledger)

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._batch_of(self._ledger.read_ledger(), 1.0)

    def next_batch(self, length: float) -> Batch:
        with self._watch.part("load"):
            if self._ahead is None:
                return self.loader.next_batch()
            block = self._ahead.next_block()
        with self._watch.part("prepare"):
            return self._batch_of(block, length)

    def _batch_of(self, block: bytes, length: float) -> Batch:
        grouped = group_by_account(decode_payments(block, int(self._records * length)))
        velocity, bins = count_velocity(grouped), bin_amounts(grouped)
        flags = flag_chargebacks(grouped, velocity)
        drawn = draw_histories(flags, self._count, self._dice)
        return pad_histories(drawn, max(2, round(HISTORY * length)), grouped, bins, velocity, flags)


class Bought(nn.Module):
    """What was paid, where and how, as a row of numbers."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(kinds, inner) for kinds in (MERCHANTS, COUNTRIES, CHANNELS, BINS))
        self.figures = nn.Linear(FIGURES, inner)

    def forward(self, numbers: Tensor, figures: Tensor) -> Tensor:
        rows = self.figures(figures)
        for table, column in zip(self.tables, numbers.unbind(dim=-1), strict=True):
            rows = rows + table(column)
        return rows


class Detector(nn.Module):
    """Three blocks, which are updated one by one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width // 5
        self.bought = Bought(inner)
        self.memory = nn.GRU(inner, inner, batch_first=True)
        self.verdict = nn.Sequential(nn.Linear(inner, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, figures: Tensor) -> Tensor:
        _, last = self.memory(self.bought(numbers, figures))
        return self.verdict(last.squeeze(0)).squeeze(1)


def fraud_loss(said: Tensor, frauds: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(said, frauds)


class LossScale:
    """Falls by half where any rank's gradients are not finite, and grows after many steps in which all were."""

    def __init__(self) -> None:
        self.scale, self._good = FIRST_SCALE, 0

    def adjust(self, is_finite: bool) -> None:
        self._good = self._good + 1 if is_finite else 0
        if not is_finite:
            self.scale = max(1.0, self.scale / 2)
        elif self._good % GROWS_EVERY == 0:
            self.scale = min(LARGEST_SCALE, self.scale * 2)


class BlockwiseUpdate:
    """An optimizer and a schedule for each block; the last block is sent first."""

    def __init__(self, model: nn.Module, world: int, watch: Stopwatch) -> None:
        self._world, self._watch = world, watch
        self._blocks = [list(block.parameters()) for block in reversed(list(model.children()))]
        self._optimizers = [torch.optim.AdamW(block, lr=RATE) for block in self._blocks]
        waves = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
        self._schedules = [waves(optimizer, T_0=WAVE, eta_min=RATE / 20) for optimizer in self._optimizers]

    def update(self, scale: float) -> bool:
        """Whether there was an update: none where a rank overflowed."""
        flats = [parameters_to_vector([one.grad for one in block]) for block in self._blocks]
        overflowed = torch.tensor(float(not all(bool(flat.isfinite().all()) for flat in flats)))
        with self._watch.part("backward"):
            dist.all_reduce(overflowed, op=dist.ReduceOp.MAX)
            if overflowed:
                return False
            under_way = [dist.all_reduce(flat, async_op=True) for flat in flats]
        for block, flat, work, optimizer in zip(self._blocks, flats, under_way, self._optimizers, strict=True):
            with self._watch.part("backward"):
                work.wait()
            mean = flat / (scale * self._world)
            for one, its in zip(block, mean.split([one.numel() for one in block]), strict=True):
                one.grad = its.view_as(one)
            clip_grad_norm_(block, MOST_NORM)
            optimizer.step()
        for schedule in self._schedules:
            schedule.step()
        return True


class Trainer:
    """The model, its average along the way, and what changes both."""

    def __init__(self, width: int, device_s: float, rank: int, world: int, watch: Stopwatch) -> None:
        self._device_s, self._watch, self._jitter = device_s, watch, random.Random(rank)
        self.model = Detector(width)
        for one in self.model.parameters():
            dist.broadcast(one.data, src=0)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self._loss_scale = LossScale()
        self._blocks = BlockwiseUpdate(self.model, world, watch)

    def _compute_on_device(self, share: float, length: float) -> None:
        with self._watch.part("device"):
            device_wait(self._device_s * share * length * self._jitter.uniform(0.98, 1.02))

    def train_batch(self, batch: Batch, length: float) -> tuple[float, Tensor]:
        """The loss, and what was said of each history."""
        numbers, figures, frauds = batch
        with self._watch.part("forward"):
            said = self.model(numbers, figures)
            loss = fraud_loss(said, frauds)
        self._compute_on_device(IN_FORWARD, length)
        with self._watch.part("backward"):
            (loss * self._loss_scale.scale).backward()
        self._compute_on_device(1 - IN_FORWARD, length)
        with self._watch.part("optimizer"):
            was_updated = self._blocks.update(self._loss_scale.scale)
            self._loss_scale.adjust(was_updated)
            self.model.zero_grad(set_to_none=True)
            if was_updated:
                torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 / AVERAGED_OVER)
        return loss.item(), said.detach()


class Caught:
    """What was found and what was missed, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock, watch: Stopwatch) -> None:
        self._lock, self._watch = lock, watch
        self._sums = torch.zeros(5)

    def tally_caught(self, loss: float, said: Tensor, frauds: Tensor) -> None:
        alarm, fraud = said > 0, frauds > 0
        counts = [(alarm & fraud).sum(), (alarm & ~fraud).sum(), (~alarm & fraud).sum()]
        with self._lock:
            self._sums += torch.tensor([1.0, loss, *map(float, counts)])
        slow["tally_caught"]()

    def of_all(self) -> tuple[float, float, float]:
        """Loss, precision and recall over all ranks since the last time."""
        with self._watch.part("backward"):
            dist.all_reduce(self._sums)
        steps, loss, right, false, missed = self._sums.tolist()
        self._sums = torch.zeros(5)
        return loss / steps, right / max(1.0, right + false), right / max(1.0, right + missed)


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, histories = features_of(args, rank), Lengths(rank, world), Histories(args, rank, watch)
    caught = Caught(features.metrics_thread.lock, watch)
    trainer = Trainer(args.width, args.device_ms / 1000, rank, world, watch)
    steps: Iterator[int] = iter(range(args.steps)) if args.steps else itertools.count()
    for step in steps:
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, histories.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            device_s = args.device_ms / 1000 * control.orders["device"]
            trainer = Trainer(control.orders["width"], device_s, rank, world, watch)
        length = lengths.of_step(step)
        batch = histories.next_batch(length)
        with watch.part("prepare"):
            features.before_forward()
        loss, said = trainer.train_batch(batch, length)
        caught.tally_caught(loss, said, batch[2])
        if step % COUNTED_EVERY == COUNTED_EVERY - 1:
            figures = caught.of_all()
            if step % LOGGED_EVERY == LOGGED_EVERY - 1:
                log.info("step %d loss %.4f precision %.3f recall %.3f", step, *figures)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
