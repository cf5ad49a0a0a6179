"""Names of pressed plants, of very many species: another shape of the lab's job, with the same options and files.

Scans are delta coded and their pieces labelled in plain Python; the labels on the sheets are read and synonyms looked up. There are so many
species that each rank keeps the weights of some of them only: what plants look like is gathered from all ranks, each compares all with its
own species, and the softmax is put together by a sum over the ranks; gradients go back to where a plant came from.
Of the gradients of the rest each rank says only the largest, and keeps what it did not say for later. Every thirtieth step all say what is
the best name for plants that were held back.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import threading
import zlib
from collections import deque
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
from torch.nn.utils import parameters_to_vector, vector_to_parameters

PIXELS_PER_EFFORT, STEP_SHADES = 45, 31
LABEL_BYTES, LABELS_PER_EFFORT = 12, 0.5
SYLLABLES = ("ar", "be", "ci", "du", "el", "fa", "ge", "hi", "il", "ja", "ka", "lu", "me", "ni", "or", "pa", "qui", "ro", "sa",
             "ti", "ul", "va", "xe", "yu", "za")  # fmt: skip
AUTHORS = ("L.", "(L.) Mill.", "DC.", "Hook. & Arn.", "ex Willd.")
LABEL = re.compile(r"(?P<genus>[A-Z][a-z]+) (?:(?:cf|aff)\. )?(?P<species>[a-z]+)")
SAME_GENUS = {"Be": "Ar", "Qui": "Ka", "Xe": "Sa"}  # how it began before it was renamed
SMALLEST_PIECE, SIDE, BATCH_PER_PLANT, MOST_TIMES = 4, 16, 8, 3  # as many plants as usual
STAINS, STAIN_RADIUS, FADED = 2, 5, 0.25
MARGIN, SHARPNESS = 0.2, 16.0
IN_FORWARD = 0.35  # of the time on the device
SAID_SHARE = 0.04  # of the gradients, the largest
RATE, MOMENTUM, HEAD_RATE = 0.05, 0.9, 0.05
JUDGED_EVERY, NOBODY = 30, -1

Box = tuple[int, int, int, int]  # top, left, bottom, right
Batch = tuple[Tensor, Tensor]  # pictures, and a number for the name of each


class Plant(NamedTuple):
    box: Box
    name: str


class Cabinet:
    """The sheets of this rank's share of the collection, read past the page cache."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._places = places(folder, block_bytes)

    def read_sheet(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        block = os.pread(fd, self._block_bytes, min(offset, size - self._block_bytes))
        slow["read_sheet"]()
        return block


def develop_scan(block: bytes, side: int) -> np.ndarray:
    """Line by line, each shade from the one before and a small difference."""

    def next_shade(shade: int, code: int) -> int:
        return min(255, max(0, shade + code % STEP_SHADES - STEP_SHADES // 2))

    lines = [bytes(itertools.accumulate(block[at : at + side], next_shade)) for at in range(0, side * side, side)]
    sheet = np.frombuffer(b"".join(lines), dtype=np.uint8).reshape(side, side)
    slow["develop_scan"]()
    return sheet


def find_threshold(sheet: np.ndarray) -> int:
    """The shade that parts plant and paper best, after Otsu."""
    counts = np.bincount(sheet.ravel(), minlength=256).tolist()
    total, everything = sheet.size, sum(shade * count for shade, count in enumerate(counts))
    best, threshold, under, sum_under = -1.0, 0, 0, 0
    for shade, count in enumerate(counts[:-1]):
        under += count
        sum_under += shade * count
        if 0 < under < total:
            apart = sum_under / under - (everything - sum_under) / (total - under)
            if under * (total - under) * apart**2 > best:
                best, threshold = under * (total - under) * apart**2, shade
    slow["find_threshold"]()
    return threshold


def label_pieces(dark: np.ndarray) -> list[Box]:
    """The boxes of what hangs together, by runs of dark pixels that touch a run of the line above; the largest first."""
    parents: list[int] = []
    boxes: list[Box] = []

    def root(piece: int) -> int:
        while parents[piece] != piece:
            parents[piece] = piece = parents[parents[piece]]
        return piece

    above: list[tuple[int, int, int]] = []
    edges = np.diff(np.pad(dark, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    for row, line in enumerate(edges):
        changes = np.flatnonzero(line).tolist()
        here = []
        for begin, end in zip(changes[::2], changes[1::2], strict=True):
            piece = len(parents)
            parents.append(piece)
            boxes.append((row, begin, row + 1, end))
            for its_begin, its_end, other in above:
                if its_begin < end and begin < its_end and (old := root(other)) != (new := root(piece)):
                    top, left, bottom, right = boxes[old]
                    its_top, its_left, its_bottom, its_right = boxes[new]
                    boxes[old] = min(top, its_top), min(left, its_left), max(bottom, its_bottom), max(right, its_right)
                    parents[new] = old
            here.append((begin, end, piece))
        above = here
    found = [boxes[piece] for piece in range(len(parents)) if parents[piece] == piece]
    found.sort(key=lambda box: (box[2] - box[0]) * (box[3] - box[1]), reverse=True)
    slow["label_pieces"]()
    return found


def read_labels(block: bytes, count: int) -> list[str]:
    """The names on the sheets, as they are written today."""
    names = []
    for at in range(len(block) - LABEL_BYTES * count, len(block), LABEL_BYTES):
        first, second, *more, doubt, author, _ = block[at : at + LABEL_BYTES]
        genus = (SYLLABLES[first % len(SYLLABLES)] + SYLLABLES[second % len(SYLLABLES)] + "a").capitalize()
        species = "".join(SYLLABLES[code % len(SYLLABLES)] for code in more[: 2 + more[-1] % 2]) + "is"
        text = f"{genus} {'cf. ' if doubt < 40 else ''}{species} {AUTHORS[author % len(AUTHORS)]}"
        found = LABEL.match(text)
        assert found is not None
        genus = found["genus"]
        for before, today in SAME_GENUS.items():
            if genus.startswith(before):
                genus = today + genus[len(before) :]
        names.append(f"{genus} {found['species']}")
    slow["read_labels"]()
    return names


def choose_plants(pieces: list[Box], names: list[str], count: int, dice: random.Random) -> list[Plant]:
    """Large pieces, whose names are drawn; a sheet with too few shows some twice."""
    large = [box for box in pieces if min(box[2] - box[0], box[3] - box[1]) >= SMALLEST_PIECE]
    in_turn = itertools.islice(itertools.cycle(large or pieces[:1]), count)
    chosen = [Plant(box, dice.choice(names)) for box in in_turn]
    slow["choose_plants"]()
    return chosen


def cut_plants(sheet: np.ndarray, plants: list[Plant], dice: random.Random) -> list[np.ndarray]:
    """All of one size, upright or not."""
    cuts = []
    for (top, left, bottom, right), _ in plants:
        rows = np.linspace(top, bottom - 1, SIDE).astype(np.int64)
        columns = np.linspace(left, right - 1, SIDE).astype(np.int64)
        cut = sheet[np.ix_(rows, columns)].astype(np.float32) / 255
        cuts.append(np.rot90(cut, dice.randrange(4)))
    slow["cut_plants"]()
    return cuts


def stain_paper(cuts: list[np.ndarray], dice: random.Random) -> list[np.ndarray]:
    """Old paper is yellow and has stains; three colours of one shade."""
    rows, columns = np.ogrid[:SIDE, :SIDE]
    stained = []
    for cut in cuts:
        colours = np.stack([cut * (1 - FADED * channel * dice.random()) for channel in range(3)])
        for _ in range(STAINS):
            middle, left, radius = dice.uniform(0, SIDE), dice.uniform(0, SIDE), dice.uniform(1, STAIN_RADIUS)
            inside = (rows - middle) ** 2 + (columns - left) ** 2 < radius**2
            colours[:, inside] *= dice.uniform(0.5, 1.0)
        stained.append(colours)
    slow["stain_paper"]()
    return stained


def mount_batch(cuts: list[np.ndarray], plants: list[Plant]) -> Batch:
    numbers = [zlib.crc32(plant.name.encode()) for plant in plants]
    batch = torch.from_numpy(np.stack(cuts)).float(), torch.tensor(numbers)
    slow["mount_batch"]()
    return batch


class Collection:
    """Batches of one rank, mounted by itself or by its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._effort, self._plants = args.crops, args.batch / BATCH_PER_PLANT
        self._cabinet, self._watch = Cabinet(args.data / f"rank{rank}", args.sample_kib * 1024), watch
        self._dice = random.Random(rank)
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._has_workers = args.workers > 0
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._mount(self._cabinet.read_sheet(), 1.0)

    def next_batch(self, length: float) -> Batch:
        with self._watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self._cabinet.read_sheet()
        with self._watch.part("prepare"):
            return found if self._has_workers else self._mount(found, length)

    def _mount(self, block: bytes, length: float) -> Batch:
        sheet = develop_scan(block, max(SIDE, int((PIXELS_PER_EFFORT * self._effort * length) ** 0.5)))
        pieces = label_pieces(sheet <= find_threshold(sheet))
        names = read_labels(block, max(1, int(LABELS_PER_EFFORT * self._effort * length)))
        count = max(1, int(self._plants * min(length, MOST_TIMES - 1) + self._dice.random()))  # right on the average
        plants = choose_plants(pieces, names, count, self._dice)
        return mount_batch(stain_paper(cut_plants(sheet, plants, self._dice), self._dice), plants)


class Look(nn.Module):
    """What a plant looks like, as a row of numbers of length 1; the same on all ranks."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        channels = width // 32
        self.shapes = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1),
            nn.PReLU(channels),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.said = nn.Sequential(
            nn.Linear(channels * (SIDE // 2) ** 2, width // 3), nn.PReLU(), nn.Linear(width // 3, inner)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        return F.normalize(self.said(F.relu(self.shapes(pictures)).flatten(1)), dim=1)


class Species:
    """The names that this rank keeps, and how all ranks together decide among all names."""

    def __init__(self, count: int, inner: int, most: int, rank: int, world: int, watch: Stopwatch) -> None:
        self._rank, self._world, self._watch, self._count, self._most = rank, world, watch, count, most
        own = torch.randn(count, inner, generator=torch.Generator().manual_seed(rank))
        self._weights = nn.Parameter(own / inner**0.5)
        self._optimizer = torch.optim.Adagrad([self._weights], lr=HEAD_RATE)

    def _gather(self, looks: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of all ranks and whose they are; each sends as many as it can have at most, the last ones of nobody."""
        names = numbers % (self._count * self._world)
        rows = torch.zeros(self._most, looks.shape[1] + 1)
        rows[: len(looks), :-1] = looks
        rows[:, -1] = NOBODY
        rows[: len(looks), -1] = names.float()
        everyones = torch.empty(self._world * self._most, rows.shape[1])
        with self._watch.part("backward"):
            dist.all_gather_into_tensor(everyones, rows)
        return everyones[:, :-1].contiguous(), everyones[:, -1].long()

    def _sum_up(self, values: Tensor, how: dist.ReduceOp) -> Tensor:
        with self._watch.part("backward"):
            dist.all_reduce(values, op=how)
        return values

    def _compared(self, looks: Tensor) -> Tensor:
        return looks @ F.normalize(self._weights, dim=1).T

    def learn(self, looks: Tensor, numbers: Tensor) -> tuple[Tensor, float]:
        """Gradients of this rank's rows; the loss of all. Changes the weights here, which nobody else has."""
        everyones, names = self._gather(looks, numbers)
        everyones.requires_grad_()
        here = F.one_hot((names - self._rank * self._count).clamp(-1, self._count) + 1, self._count + 2)[:, 1:-1]
        alike = SHARPNESS * (self._compared(everyones) - MARGIN * here)
        with torch.no_grad():
            powers = (alike - SHARPNESS).exp()  # no likeness is larger than 1
            sums = torch.stack((powers.sum(dim=1), (alike * here).sum(dim=1)))
            total, right = self._sum_up(sums, dist.ReduceOp.SUM)
            is_plant = (names != NOBODY).float() / max(1, int((names != NOBODY).sum()))
            loss = float(((total.log() + SHARPNESS - right) * is_plant).sum())
            wrong = (powers / total[:, None] - here) * is_plant[:, None]
        alike.backward(wrong)
        own = torch.empty(self._most, looks.shape[1])
        with self._watch.part("backward"):
            dist.reduce_scatter_tensor(own, everyones.grad)
        with self._watch.part("optimizer"):
            self._optimizer.step()
            self._optimizer.zero_grad()
        return own[: len(looks)], loss

    @torch.no_grad()
    def share_right(self, looks: Tensor, numbers: Tensor) -> float:
        """How many are named right by all ranks together."""
        everyones, names = self._gather(looks, numbers)
        alike, best = self._compared(everyones).max(dim=1)
        highest = self._sum_up(alike.clone(), dist.ReduceOp.MAX)
        is_right = (alike == highest) & (best + self._rank * self._count == names)
        right = self._sum_up(is_right.sum(), dist.ReduceOp.SUM)
        return float(right) / max(1, int((names != NOBODY).sum()))


class LargestFirst:
    """Momentum on the gradients that were said: each rank says its largest, and adds the others to those of the next step."""

    def __init__(self, model: nn.Module, world: int, watch: Stopwatch) -> None:
        self._weights, self._world, self._watch = list(model.parameters()), world, watch
        start = parameters_to_vector(self._weights).detach()
        dist.broadcast(start, src=0)
        vector_to_parameters(start, self._weights)
        self._unsaid = torch.zeros_like(start)
        self._said = int(SAID_SHARE * len(start))
        self._optimizer = torch.optim.SGD(self._weights, lr=RATE, momentum=MOMENTUM, nesterov=True)

    def update(self) -> None:
        self._unsaid += parameters_to_vector([one.grad for one in self._weights])
        places_said = self._unsaid.abs().topk(self._said, sorted=False).indices
        values = self._unsaid[places_said]
        self._unsaid[places_said] = 0.0
        said = torch.stack((places_said.int(), values.view(torch.int32)))
        everyones = torch.empty(self._world, *said.shape, dtype=torch.int32)
        with self._watch.part("backward"):
            dist.all_gather_into_tensor(everyones.flatten(0, 1), said)
        all_places, all_values = everyones.transpose(0, 1).flatten(1)
        total = torch.zeros_like(self._unsaid).index_add_(0, all_places, all_values.view(torch.float32))
        vector_to_parameters(total, [one.grad for one in self._weights])
        self._optimizer.step()
        self._optimizer.zero_grad()


class RightNames:
    """The latest losses, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._losses: deque[float] = deque(maxlen=JUDGED_EVERY)

    def enter_loss(self, loss: float) -> None:
        with self._lock:
            self._losses.append(loss)
        slow["enter_loss"]()

    def mean(self) -> float:
        return sum(self._losses) / len(self._losses)


class Botanist:
    """Both halves of the model; begins anew with another width."""

    def __init__(self, width: int, most: int, device_s: float, rank: int, world: int, watch: Stopwatch) -> None:
        self._device_s, self._watch, self._jitter = device_s, watch, random.Random(rank)
        inner = width // 6
        self._look = Look(width, inner)
        self._species = Species(width // 2, inner, most, rank, world, watch)
        self._largest_first = LargestFirst(self._look, world, watch)

    def _compute_on_device(self, share: float, length: float) -> None:
        with self._watch.part("device"):
            device_wait(self._device_s * share * length * self._jitter.uniform(0.98, 1.02))

    def learn(self, batch: Batch, length: float) -> float:
        pictures, numbers = batch
        with self._watch.part("forward"):
            looks = self._look(pictures)
        self._compute_on_device(IN_FORWARD, length)
        with self._watch.part("forward"):  # but for what is gathered, the rank's own time, back and forth
            gradient, loss = self._species.learn(looks.detach(), numbers)
            looks.backward(gradient)
        self._compute_on_device(1 - IN_FORWARD, length)
        with self._watch.part("optimizer"):
            self._largest_first.update()
        return loss

    @torch.no_grad()
    def judge(self, batch: Batch) -> float:
        with self._watch.part("forward"):
            return self._species.share_right(self._look(batch[0]), batch[1])


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, collection = features_of(args, rank), Lengths(rank, world), Collection(args, rank, watch)
    names = RightNames(features.metrics_thread.lock)
    held_back = collection.next_batch(1.0)
    most = MOST_TIMES * args.batch // BATCH_PER_PLANT
    botanist = Botanist(args.width, most, args.device_ms / 1000, rank, world, watch)
    for step in range(args.steps) if args.steps else itertools.count():
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, collection.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            device_s = args.device_ms / 1000 * control.orders["device"]
            botanist = Botanist(control.orders["width"], most, device_s, rank, world, watch)
        length = lengths.of_step(step)
        batch = collection.next_batch(length)
        with watch.part("prepare"):
            features.before_forward()
        names.enter_loss(botanist.learn(batch, length))
        if step % JUDGED_EVERY == JUDGED_EVERY - 1:
            right = botanist.judge(held_back)
            if rank == 0:
                print(f"{step + 1} batches: loss {names.mean():.3f}, {right:.1%} named right", flush=True)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
