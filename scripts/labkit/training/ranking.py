"""A recommender whose embedding tables are spread over the ranks: another shape of the lab's job, with the same options and files.

Every rank asks the others for the rows of its clicks and sends their gradients back, all to all; the dense part has its gradients summed
while the backward pass goes on, and each rank updates a part of it for all. Every fiftieth step all judge a sample.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from torch import Tensor, nn

SLOTS, ROW, TABLE = 8, 16, 4096
JUDGED_EVERY = 50


class Clicks:
    """The log of one rank, read past the page cache."""

    def __init__(self, folder: Path, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._places = places(folder, chunk_bytes)

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        return self.read_clicks()

    def read_clicks(self) -> np.ndarray:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        found = os.pread(fd, self._chunk_bytes, min(offset, size - self._chunk_bytes))
        slow["read_clicks"]()
        return np.frombuffer(found, dtype=np.uint16)


def hash_ids(clicks: np.ndarray, count: int, rounds: int) -> np.ndarray:
    ids = clicks[: count * SLOTS].astype(np.int64)
    for number in range(rounds):
        ids = (ids * 2654435761 + number) % 4294967291
    slow["hash_ids"]()
    return ids % TABLE


def draw_negatives(ids: np.ndarray) -> np.ndarray:
    negatives = np.roll(ids.reshape(-1, SLOTS), 1, axis=0)
    slow["draw_negatives"]()
    return negatives.ravel()


def label(ids: np.ndarray) -> Tensor:
    found = torch.from_numpy((ids.reshape(-1, SLOTS).sum(1) % 2).astype(np.float32))
    slow["label"]()
    return found


@dataclass
class Asked:
    """Rows that were asked for: in which order, and how many of each rank."""

    order: Tensor
    mine: list[int]
    theirs: list[int]
    rows: Tensor


class Table:
    """Every rank holds the rows whose number leaves its own rank as remainder."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.rows = torch.randn(TABLE // world + 1, ROW) * 0.05

    def look_up(self, ids: Tensor) -> tuple[Tensor, Asked]:
        owners = ids % self.world
        order = torch.argsort(owners, stable=True)
        mine = torch.bincount(owners, minlength=self.world)
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine)
        asked = Asked(order, mine.tolist(), theirs.tolist(), torch.empty(int(theirs.sum()), dtype=torch.int64))
        dist.all_to_all_single(asked.rows, ids[order] // self.world, asked.theirs, asked.mine)
        found = torch.empty(len(ids), ROW)
        dist.all_to_all_single(found, self.rows[asked.rows], asked.mine, asked.theirs)
        vectors = torch.empty_like(found)
        vectors[order] = found
        return vectors, asked

    def learn(self, asked: Asked, gradient: Tensor) -> None:
        sent = torch.empty(len(asked.rows), ROW)
        dist.all_to_all_single(sent, gradient[asked.order].contiguous(), asked.theirs, asked.mine)
        self.rows.index_add_(0, asked.rows, sent, alpha=-0.01)


class Dense(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(SLOTS * ROW, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.score = nn.Linear(width, 1)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.score(self.layers(vectors.view(-1, SLOTS * ROW))).squeeze(1)


class Summed:
    """Sums the gradient of each parameter over the ranks as soon as it is there, and updates them in parts, one rank each."""

    def __init__(self, model: nn.Module, rank: int, world: int) -> None:
        self.parameters = list(model.parameters())
        self.rank, self.world = rank, world
        self._under_way: list[dist.Work] = []
        for one in self.parameters:
            one.register_post_accumulate_grad_hook(self._begin)

    def _begin(self, parameter: Tensor) -> None:
        self._under_way.append(dist.all_reduce(parameter.grad, async_op=True))

    @torch.no_grad()
    def apply(self) -> None:
        for work in self._under_way:
            work.wait()
        self._under_way.clear()
        flat = torch.cat([(one - 0.01 / self.world * one.grad).flatten() for one in self.parameters])
        part = -(-len(flat) // self.world)
        flat = F.pad(flat, (0, part * self.world - len(flat)))
        updated = [torch.empty(part) for _ in range(self.world)]
        dist.all_gather(updated, flat[self.rank * part : (self.rank + 1) * part].contiguous())
        flat, at = torch.cat(updated), 0
        for one in self.parameters:
            one.copy_(flat[at : at + one.numel()].view_as(one))
            at, one.grad = at + one.numel(), None


class Board:
    """Running scores, under a lock that an uploading thread shares."""

    def __init__(self, lock: object) -> None:
        self.lock = lock
        self.scores: list[float] = []

    def post(self, score: float) -> None:
        with self.lock:
            self.scores.append(score)
            del self.scores[:-500]
        slow["post"]()


class Recommender:
    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self.args, self.rank, self.world = args, rank, world
        self.clicks = Clicks(args.data / f"rank{rank}", args.sample_kib * 1024)
        self.table = Table(rank, world)
        self.resize(args.width, args.device_ms / 1000)

    def resize(self, width: int, device_s: float) -> None:
        self.model = Dense(width)
        self.summed = Summed(self.model, self.rank, self.world)
        self.device_s = device_s

    def examples(self, length: float) -> tuple[Tensor, Tensor]:
        count = max(2, int(self.args.batch * length))
        clicked = hash_ids(next(self.clicks), count, 20 * self.args.crops)
        ids = np.concatenate((clicked, draw_negatives(clicked)))
        slow["examples"]()
        return torch.from_numpy(ids), label(ids)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Asked]:
        vectors, asked = self.table.look_up(ids)
        vectors.requires_grad_()
        return self.model(vectors), vectors, asked

    def backward(self, loss: Tensor, vectors: Tensor, asked: Asked) -> None:
        loss.backward()
        self.table.learn(asked, vectors.grad)
        self.summed.apply()

    @torch.no_grad()
    def judge(self, ids: Tensor, labels: Tensor) -> float:
        right = ((self.forward(ids)[0] > 0) == (labels > 0.5)).float().mean()
        dist.all_reduce(right)
        return float(right) / self.world


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    recommender = Recommender(args, rank, world)
    control, its_control = (Control(args.dir / f"rank{rank}.control") for _ in range(2))
    recorder = Recorder(args.dir / f"rank{rank}.steps")
    features, lengths = features_of(args, rank), Lengths(rank, world)
    board, jitter = Board(features.metrics_thread.lock), random.Random(rank)

    def make_batch(number: int) -> tuple[Tensor, Tensor]:
        its_control.poll(number)
        return recommender.examples(1.0)

    loader = Loader(make_batch, args.workers)
    loader.follow({})
    for step in range(args.steps) if args.steps else itertools.count():
        if control.poll(step):
            for part in (features, lengths, loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            recommender.resize(control.orders["width"], args.device_ms / 1000 * control.orders["device"])
        length = lengths.of_step(step)
        marks, cpu = [time.monotonic()], time.process_time()

        def mark() -> None:
            marks.append(time.monotonic())  # noqa: B023  of this step

        ids, labels = loader.next_batch() if args.workers else recommender.examples(length)
        mark()
        features.before_forward()
        mark()
        scores, vectors, asked = recommender.forward(ids)
        loss = F.binary_cross_entropy_with_logits(scores, labels)
        mark()
        device_wait(recommender.device_s * length * jitter.uniform(0.98, 1.02))
        mark()
        recommender.backward(loss, vectors, asked)
        mark()
        if step % JUDGED_EVERY == JUDGED_EVERY - 1:
            recommender.judge(ids, labels)
        mark()
        board.post(loss.item())
        features.after_step(step)
        mark()
        recorder.write(step, marks, time.process_time() - cpu)


if __name__ == "__main__":
    run(train)
