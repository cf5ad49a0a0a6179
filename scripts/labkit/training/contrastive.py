"""Pictures and their captions, learned by two towers: another shape of the lab's job, with the same options and files.

A sample is a dictionary that a list of transforms fills: captions are cut into pieces of words in Python, pictures cropped in numpy. Each
tower is sharded over the ranks, and its weights are on their way while the sample is prepared. Every rank compares its own pictures
and captions with those of all, gathered so that gradients flow back; every thirtieth step all count how many find each other.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import string
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

PATCHES, PATCH, MARGIN = 8, 64, 4  # of a picture: patches, values of each, how far a crop may lie off
LETTERS_PER_PATCH, PIECES_PER_PATCH = 3, 2
VOCABULARY, SHARED, ROWS_PER_PAIR = 512, 64, 2
PICTURE_SHARE = 0.6  # of the time on the device
RATE, DECAY = 5e-4, 0.05
COUNTED_EVERY, PRINTED_EVERY = 30, 90
MOST_SCALE = math.log(100)

# What a byte of a caption stands for: letters, and every eighth a blank.
ALPHABET = bytes(ord(" ") if code % 8 == 7 else ord("a") + code % 26 for code in range(256))
UNKNOWN, MASK = 0, 1

Sample = dict[str, Any]


def vocabulary() -> dict[str, int]:
    """All letters, and the pairs that are commonest in it."""
    pairs = [first + second for first in string.ascii_lowercase for second in string.ascii_lowercase]
    pieces = [*string.ascii_lowercase, *pairs[:: len(pairs) // (VOCABULARY - 28) + 1]]
    return {piece: number for number, piece in enumerate(pieces, 2)}


class PairFiles:
    """The pairs of one rank, read past the page cache."""

    def __init__(self, folder: Path, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._places = places(folder, piece_bytes)

    def read_pairs(self, sample: Sample) -> Sample:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        wanted = min(size, int(self._piece_bytes * sample["length"]))
        sample["bytes"] = os.pread(fd, wanted, min(offset, size - wanted))
        slow["read_pairs"]()
        return sample


class Transforms:
    """From bytes to a sample of pictures and captions; `effort` sets how many crops are looked at for each picture."""

    def __init__(self, rows: int, effort: int, seed: int) -> None:
        self._rows, self._effort = rows, effort
        self._rng, self._dice = np.random.default_rng(seed), random.Random(seed)
        self._vocabulary = vocabulary()
        self._words = re.compile(r"[a-z]+")
        self.all: list[Callable[[Sample], Sample]] = [
            self.clean_captions, self.word_pieces, self.choose_crops, self.jitter_colours, self.stack_pairs
        ]  # fmt: skip

    def __call__(self, sample: Sample) -> Sample:
        for transform in self.all:
            sample = transform(sample)
        return sample

    def clean_captions(self, sample: Sample) -> Sample:
        sample["patches"] = int(PATCHES * sample["length"])
        letters = sample["patches"] * LETTERS_PER_PATCH
        text = sample["bytes"][: self._rows * letters].translate(ALPHABET).decode("ascii")
        lines = [text[at : at + letters].strip().lower() for at in range(0, self._rows * letters, letters)]
        sample["captions"] = [self._words.findall(line) for line in lines]
        slow["clean_captions"]()
        return sample

    def word_pieces(self, sample: Sample) -> Sample:
        """The longest pieces that are known, from the left; one in ten is masked."""
        known = self._vocabulary.get
        sample["pieces"] = []
        for caption in sample["captions"]:
            found = []
            for word in caption:
                at = 0
                while at < len(word):
                    number = known(word[at : at + 2])
                    at += 1 if number is None else 2
                    found.append(number or known(word[at - 1], UNKNOWN))
            for place in self._dice.sample(range(len(found)), len(found) // 10):
                found[place] = MASK
            sample["pieces"].append(found)
        slow["word_pieces"]()
        return sample

    def choose_crops(self, sample: Sample) -> Sample:
        """Of several crops of each picture, the one that shows most."""
        rows, patches = np.arange(self._rows)[:, None], np.arange(sample["patches"])
        shape = (self._rows, sample["patches"] + MARGIN, PATCH)
        canvas = np.resize(np.frombuffer(sample["bytes"], dtype=np.uint8), shape)
        contrast = canvas[:, :, ::4].max(axis=2).astype(np.float32) - canvas[:, :, ::4].min(axis=2)
        best, most = np.zeros(self._rows, dtype=np.int64), np.full(self._rows, -1.0, dtype=np.float32)
        for _ in range(self._effort):
            begin = self._rng.integers(0, MARGIN + 1, self._rows)
            shown = contrast[rows, begin[:, None] + patches].sum(axis=1)
            better = shown > most
            best[better], most[better] = begin[better], shown[better]
        sample["pictures"] = canvas[rows, best[:, None] + patches]
        slow["choose_crops"]()
        return sample

    def jitter_colours(self, sample: Sample) -> Sample:
        gain = self._rng.uniform(0.8, 1.2, (self._rows, 1, 1)).astype(np.float32)
        sample["pictures"] = (sample["pictures"].astype(np.float32) / 255 - 0.5) * gain
        slow["jitter_colours"]()
        return sample

    def stack_pairs(self, sample: Sample) -> Sample:
        longest = sample["patches"] * PIECES_PER_PATCH
        pieces = np.zeros((self._rows, longest), dtype=np.int64)
        for row, found in zip(pieces, sample["pieces"], strict=True):
            row[: len(found)] = found[:longest]
        stacked = {"pictures": torch.from_numpy(sample["pictures"]), "pieces": torch.from_numpy(pieces)}
        slow["stack_pairs"]()
        return stacked


class PictureTower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.see, self.say = nn.Linear(PATCH, SHARED), nn.Linear(width, SHARED)
        self.think = nn.Sequential(nn.Linear(SHARED, width), nn.ReLU(), nn.Linear(width, width), nn.GELU())

    def forward(self, pictures: Tensor) -> Tensor:
        return F.normalize(self.say(self.think(F.relu(self.see(pictures)).mean(dim=1))), dim=-1)


class CaptionTower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.read = nn.Embedding(VOCABULARY, width // 3), nn.Linear(width // 3, width)
        self.say = nn.Linear(width, SHARED)

    def forward(self, pieces: Tensor) -> Tensor:
        return F.normalize(self.say(F.gelu(self.read(self.words(pieces).mean(dim=1)))), dim=-1)


class OfAllRanks(torch.autograd.Function):
    """The rows of all ranks; each gets the gradients that all have for its rows."""

    @staticmethod
    def forward(ctx, rows: Tensor, world: int) -> Tensor:
        ctx.shape = rows.shape
        everyones = rows.new_empty(world * len(rows), rows.shape[1])
        dist.all_gather_into_tensor(everyones, rows.contiguous())
        return everyones

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        own = gradient.new_empty(ctx.shape)
        dist.reduce_scatter_tensor(own, gradient.contiguous())
        return own, None


class Pair:
    """Both towers, the scale of their likeness, and what updates them."""

    def __init__(self, width: int, device_s: float, mesh: DeviceMesh, watch: Stopwatch) -> None:
        self._rank, self._world, self._watch, self.device_s = mesh.get_rank(), mesh.size(), watch, device_s
        torch.manual_seed(7)
        self.pictures, self.captions = (
            fully_shard(tower(width), mesh=mesh, reshard_after_forward=False) for tower in (PictureTower, CaptionTower)
        )
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        sharded = {"params": [*self.pictures.parameters(), *self.captions.parameters()]}
        groups = [sharded, {"params": [self.scale], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY, fused=True)

    def ask_for_weights(self) -> list[Any]:
        return [tower.unshard(async_op=True) for tower in (self.pictures, self.captions)]

    def embed(self, batch: Sample, longer: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """(own, everyone's) pictures and captions."""
        with self._watch.part("forward"):
            pictures = self.pictures(batch["pictures"])
        with self._watch.part("device"):
            device_wait(self.device_s * PICTURE_SHARE * longer)
        with self._watch.part("backward"):
            all_pictures = OfAllRanks.apply(pictures, self._world)
        with self._watch.part("forward"):
            captions = self.captions(batch["pieces"])
        with self._watch.part("device"):
            device_wait(self.device_s * (1 - PICTURE_SHARE) * longer)
        with self._watch.part("backward"):
            all_captions = OfAllRanks.apply(captions, self._world)
        return (pictures, all_pictures), (captions, all_captions)

    def contrast(self, batch: Sample, longer: float) -> Tensor:
        (pictures, all_pictures), (captions, all_captions) = self.embed(batch, longer)
        with self._watch.part("forward"):
            own = torch.arange(len(pictures)) + self._rank * len(pictures)
            scale = self.scale.exp()
            likeness = F.cross_entropy(scale * pictures @ all_captions.T, own)
            return (likeness + F.cross_entropy(scale * captions @ all_pictures.T, own)) / 2

    def learn(self, loss: Tensor) -> None:
        with self._watch.part("backward"):
            loss.backward()
            dist.all_reduce(self.scale.grad)
        with self._watch.part("optimizer"):
            self.scale.grad /= self._world
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scale.data.clamp_(max=MOST_SCALE)

    @torch.no_grad()
    def count_found(self, batch: Sample) -> float:
        """The share of pictures, over all ranks, that are most like their own caption."""
        (pictures, _), (_, all_captions) = self.embed(batch, 0.5)
        with self._watch.part("forward"):
            first = (pictures @ all_captions.T).argmax(dim=1) - self._rank * len(pictures)
            found = (first == torch.arange(len(pictures))).float().mean()
        with self._watch.part("backward"):
            dist.all_reduce(found)
        return float(found) / self._world


class Scores:
    """How well the towers agree, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._sum, self._count = 0.0, 0

    def keep_score(self, loss: float) -> float:
        with self._lock:
            self._sum, self._count = self._sum + loss, self._count + 1
        slow["keep_score"]()
        return self._sum / self._count


class Session:
    """One rank's training: what it follows, and one step after the other."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self.args, self.rank = args, rank
        self.watch = Stopwatch(Recorder(args.dir / f"rank{rank}.steps"))
        self.control, self._its_control = (Control(args.dir / f"rank{rank}.control") for _ in range(2))
        self.features, self.lengths = features_of(args, rank), Lengths(rank, world)
        self.files = PairFiles(args.data / f"rank{rank}", args.sample_kib * 1024)
        self.transforms = Transforms(args.batch // ROWS_PER_PAIR, args.crops, rank)
        self.loader = Loader(self.in_worker, args.workers)
        self.loader.follow({})
        self.scores, self._jitter = Scores(self.features.metrics_thread.lock), random.Random(rank)
        self.mesh = init_device_mesh("cpu", (world,))
        self.pair = Pair(args.width, args.device_ms / 1000, self.mesh, self.watch)
        self.held_out: Sample | None = None

    def in_worker(self, number: int) -> Sample:
        self._its_control.poll(number)
        return self.transforms(self.files.read_pairs({"length": 1.0}))

    def obey(self, step: int) -> float:
        """Follow the control file; how long this step's pictures and captions are."""
        if self.control.poll(step):
            for part in (self.features, self.lengths, self.loader):
                part.follow(self.control.orders)
        orders = self.control.orders
        if step == orders.get("at"):
            device_s = self.args.device_ms / 1000 * orders["device"]
            self.pair = Pair(orders["width"], device_s, self.mesh, self.watch)
        return self.lengths.of_step(step)

    def sample(self, length: float) -> Sample:
        with self.watch.part("load"):
            sample = self.loader.next_batch() if self.args.workers else self.files.read_pairs({"length": length})
        with self.watch.part("prepare"):
            if not self.args.workers:
                sample = self.transforms(sample)
            self.features.before_forward()
        return sample

    def step(self, step: int) -> None:
        self.watch.begin()
        length = self.obey(step)
        with self.watch.part("forward"):
            on_their_way = self.pair.ask_for_weights()
        batch = self.sample(length)
        with self.watch.part("backward"):
            for weights in on_their_way:
                weights.wait()
        if step % COUNTED_EVERY == COUNTED_EVERY - 1:
            self.held_out = self.held_out or batch
            found = self.pair.count_found(self.held_out)
            if self.rank == 0 and step % PRINTED_EVERY == PRINTED_EVERY - 1:
                print(f"step {step} found {found:.3f}", flush=True)
        loss = self.pair.contrast(batch, length * self._jitter.uniform(0.98, 1.02))
        self.pair.learn(loss)
        self.scores.keep_score(loss.item())
        self.features.after_step(step)
        self.watch.end(step)


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    session, step = Session(args, rank, world), 0
    while not args.steps or step < args.steps:
        session.step(step)
        step += 1


if __name__ == "__main__":
    run(train)
