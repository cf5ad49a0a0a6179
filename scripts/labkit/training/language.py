"""Training a language model on two micro-batches per update: another shape of the lab's job, with the same options and files.

Documents are parsed word by word in Python, gradients are exchanged after the second micro-batch only, and clipped; every tenth
update averages its loss over the ranks, every hundredth makes them wait for each other.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from control import Control, slow
from features import Lengths, places
from job import Recorder, device_wait, features_of, run
from loader import Loader
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WORDS, LENGTH, MICRO = 512, 24, 2
WORD_BYTES = 6


class Corpus:
    """Documents of one rank, read past the page cache."""

    def __init__(self, folder: Path, document_bytes: int, effort: int) -> None:
        self.document_bytes, self.effort = document_bytes, effort
        self._places = places(folder, document_bytes)
        self._vocabulary = {number.to_bytes(2, "big"): number % WORDS for number in range(65536)}

    def read_document(self) -> bytes:
        file, offset, size = next(self._places)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        document = os.pread(file, self.document_bytes, min(offset, size - self.document_bytes))
        slow["read_document"]()
        return document

    def split_words(self, document: bytes, count: int) -> Iterator[bytes]:
        for at in range(0, count * WORD_BYTES, WORD_BYTES):
            yield document[at : at + WORD_BYTES]
        slow["split_words"]()

    def look_up(self, word: bytes) -> int:
        return (self._vocabulary[word[:2]] + self._vocabulary[word[2:4]]) % WORDS

    def tokens(self, rows: int) -> list[int]:
        """The words of a new document, looked up `effort` times over, as a slow tokenizer would."""
        document = self.read_document()
        wanted = rows * (LENGTH + 1) * MICRO
        found: list[int] = []
        for _ in range(max(1, self.effort // 25)):
            found = [self.look_up(word) for word in self.split_words(document, wanted)]
        slow["tokens"]()
        return found


def pack(tokens: list[int], rows: int) -> Tensor:
    packed = torch.tensor(tokens).view(MICRO, rows, LENGTH + 1)
    slow["pack"]()
    return packed


def shift(packed: Tensor) -> tuple[Tensor, Tensor]:
    inputs, targets = packed[..., :-1].contiguous(), packed[..., 1:].contiguous()
    slow["shift"]()
    return inputs, targets


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.mix(self.words(tokens))[0])


class Journal:
    """What was lost in each update, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.losses: list[float] = []

    def write(self, loss: float) -> None:
        with self.lock:
            self.losses = [*self.losses[-99:], loss]
        slow["write"]()


class Trainer:
    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self.args = args
        self.corpus = Corpus(args.data / f"rank{rank}", args.sample_kib * 1024, args.crops)
        self.control = Control(args.dir / f"rank{rank}.control")
        self.recorder = Recorder(args.dir / f"rank{rank}.steps")
        self.features = features_of(args, rank)
        self.lengths = Lengths(rank, world)
        self.journal = Journal(self.features.metrics_thread.lock)
        self.jitter = random.Random(rank)
        self.device_s = args.device_ms / 1000
        self.build(args.width)
        its_control = Control(self.control.path)

        def make_batch(number: int) -> tuple[Tensor, Tensor]:
            its_control.poll(number)
            return self.batch(1.0)

        self.loader = Loader(make_batch, args.workers)
        self.loader.follow({})

    def build(self, width: int) -> None:
        self.model = DistributedDataParallel(Model(width // 3))
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.01)

    def batch(self, length: float) -> tuple[Tensor, Tensor]:
        rows = max(1, int(self.args.batch * length) // 8)
        return shift(pack(self.corpus.tokens(rows), rows))

    def follow(self, step: int) -> None:
        if self.control.poll(step):
            for part in (self.features, self.lengths, self.loader):
                part.follow(self.control.orders)
        if step == self.control.orders.get("at"):
            self.build(self.control.orders["width"])
            self.device_s = self.args.device_ms / 1000 * self.control.orders["device"]

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())

    def update(self, step: int) -> None:
        self.follow(step)
        length = self.lengths.of_step(step)
        marks, cpu = [time.monotonic()], time.process_time()

        def mark() -> None:
            marks.append(time.monotonic())

        inputs, targets = self.loader.next_batch() if self.args.workers else self.batch(length)
        mark()
        self.features.before_forward()
        mark()
        with self.model.no_sync():
            self.loss(inputs[0], targets[0]).backward()
        loss = self.loss(inputs[1], targets[1])
        mark()
        device_wait(self.device_s * length * self.jitter.uniform(0.98, 1.02))
        mark()
        loss.backward()
        mark()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        mark()
        self.journal.write(loss.item())
        if step % 10 == 9:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
        if step % 100 == 99:
            dist.barrier()
        self.features.after_step(step)
        mark()
        self.recorder.write(step, marks, time.process_time() - cpu)


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    trainer = Trainer(args, rank, world)
    for step in range(args.steps) if args.steps else itertools.count():
        trainer.update(step)


if __name__ == "__main__":
    run(train)
