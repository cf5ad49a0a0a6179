"""What grows where, seen from above: another shape of the lab's job, with the same options and files.

Scenes come with the outlines of fields, which are filled line by line in plain Python; colours are balanced, tiles cut, clouds drawn over
them, and borders weigh more. Every rank takes steps of its own and only every fourth time do all say how far they came: within each
node first, then across nodes, and an outer optimizer goes on from the mean. In between all know of each other how many pixels there
were of each class, which the loss is weighed by. Every twenty-fourth step all count what they took for what.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import threading
from bisect import insort
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

BANDS, CLASSES = 4, 6
PIXELS_PER_EFFORT, TILE, ROWS_PER_TILE = 130, 16, 16
FIELD_BYTES, PIXELS_PER_FIELD, LEAST_CORNERS, MORE_CORNERS = 24, 220, 4, 5
BRIGHTEST, CLIPPED = 255, 0.02  # of the pixels of a band, at either end
DRAWS_PER_TILE = 4
CLOUDS_PER_TILE, CLOUD_RADIUS, CLOUD_WHITE = 2, 5, 0.9
BORDER_WEIGHT, BORDER_REACH = 3.0, 2
IN_FORWARD = 0.4  # of the time on the device
RATE, MOST_NORM, FADES_OVER = 1e-3, 1.0, 20_000
SYNCED_EVERY, OUTER_RATE, OUTER_MOMENTUM = 4, 0.7, 0.9
COUNTED_EVERY = 24

Corner = tuple[float, float]
Batch = tuple[Tensor, Tensor, Tensor]  # tiles, the class of each pixel, how much it weighs


class Field(NamedTuple):
    corners: list[Corner]
    grows: int


class Tile(NamedTuple):
    pixels: np.ndarray
    classes: np.ndarray


class Scenes:
    """The scenes of this rank's region, read past the page cache."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._places = places(folder, block_bytes)

    def read_scene(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        block = os.pread(fd, self._block_bytes, min(offset, size - self._block_bytes))
        slow["read_scene"]()
        return block


def trace_fields(block: bytes, side: int) -> list[Field]:
    """Outlines: corners around a centre, each as far from it as its byte says."""
    fields, reach = [], math.sqrt(2 * PIXELS_PER_FIELD / math.pi)
    for at in range(0, FIELD_BYTES * max(2, side * side // PIXELS_PER_FIELD), FIELD_BYTES):
        row, column, kind, more, *distances = block[at : at + FIELD_BYTES]
        count = LEAST_CORNERS + more % MORE_CORNERS
        corners = []
        for number, distance in enumerate(distances[:count]):
            angle, away = 2 * math.pi * number / count, reach * (0.4 + distance / BRIGHTEST)
            corners.append((row * side / 256 + away * math.sin(angle), column * side / 256 + away * math.cos(angle)))
        fields.append(Field(corners, 1 + kind % (CLASSES - 1)))
    slow["trace_fields"]()
    return fields


def fill_fields(fields: list[Field], side: int) -> np.ndarray:
    """Line by line between the edges that cross it; a field lies over those before it, and 0 is where none is."""
    classes = np.zeros((side, side), dtype=np.uint8)
    for corners, grows in fields:
        crossed: dict[int, list[float]] = {}
        for (upper, left), (lower, right) in zip(corners, corners[1:] + corners[:1], strict=True):
            if upper > lower:
                upper, left, lower, right = lower, right, upper, left  # noqa: PLW2901
            for row in range(max(0, math.ceil(upper)), min(side, math.ceil(lower))):
                insort(crossed.setdefault(row, []), left + (right - left) * (row - upper) / (lower - upper))
        for row, columns in crossed.items():
            for begin, end in zip(columns[::2], columns[1::2], strict=True):
                classes[row, max(0, math.ceil(begin)) : max(0, math.ceil(end))] = grows
    slow["fill_fields"]()
    return classes


def paint_bands(block: bytes, classes: np.ndarray) -> np.ndarray:
    """The bands of a scene: what grows somewhere has a colour, and the sensor its noise."""
    side = len(classes)
    noise = np.frombuffer(block, dtype=np.uint8, count=BANDS * side * side).reshape(BANDS, side, side)
    shades = 40 + (np.arange(1, BANDS + 1)[:, None] * np.arange(CLASSES) * 37) % 120
    scene = (shades[:, classes] + noise // 4).astype(np.uint8)
    slow["paint_bands"]()
    return scene


def balance_colours(scene: np.ndarray) -> np.ndarray:
    """Each band stretched from its darkest to its brightest pixels, but for a few at either end."""
    bands = []
    for band in scene:
        counts = [0] * (BRIGHTEST + 1)
        for value in band.tobytes():
            counts[value] += 1
        under, few = list(itertools.accumulate(counts)), CLIPPED * band.size
        dark = next(value for value, count in enumerate(under) if count > few)
        bright = next(value for value, count in enumerate(under) if count >= band.size - few)
        scale = BRIGHTEST / max(1, bright - dark)
        table = bytes(min(BRIGHTEST, max(0, int((value - dark) * scale))) for value in range(BRIGHTEST + 1))
        bands.append(np.frombuffer(band.tobytes().translate(table), dtype=np.uint8).reshape(band.shape))
    balanced = np.stack(bands).astype(np.float32) / BRIGHTEST
    slow["balance_colours"]()
    return balanced


def cut_tiles(scene: np.ndarray, classes: np.ndarray, count: int, dice: random.Random) -> list[Tile]:
    """Of a few places drawn for each tile the one where most different things grow; turned and mirrored at random."""
    tiles, last = [], len(classes) - TILE
    for _ in range(count):
        drawn = [(dice.randint(0, last), dice.randint(0, last)) for _ in range(DRAWS_PER_TILE)]
        row, column = max(drawn, key=lambda at: len(set(classes[at[0] : at[0] + TILE, at[1] : at[1] + TILE].tobytes())))
        window = np.s_[..., row : row + TILE, column : column + TILE]
        turns, mirrored = dice.randrange(4), dice.random() < 0.5
        found = [np.rot90(one[window], turns, axes=(-2, -1)) for one in (scene, classes)]
        tiles.append(Tile(*(np.ascontiguousarray(one[..., ::-1] if mirrored else one) for one in found)))
    slow["cut_tiles"]()
    return tiles


def draw_clouds(tiles: list[Tile], dice: random.Random) -> None:
    """Discs that are white in the middle; what is under them is to be said all the same."""
    for tile in tiles:
        for _ in range(dice.randint(0, CLOUDS_PER_TILE)):
            middle, left = dice.uniform(0, TILE), dice.uniform(0, TILE)
            radius = dice.uniform(2, CLOUD_RADIUS)
            for row in range(max(0, int(middle - radius)), min(TILE, int(middle + radius) + 1)):
                for column in range(max(0, int(left - radius)), min(TILE, int(left + radius) + 1)):
                    thick = CLOUD_WHITE * (1 - math.hypot(row - middle, column - left) / radius)
                    if thick > 0:
                        tile.pixels[:, row, column] += thick * (1 - tile.pixels[:, row, column])
    slow["draw_clouds"]()


def weigh_borders(tiles: list[Tile]) -> list[list[float]]:
    """How much each pixel counts: more, the nearer it is to another class, by steps outwards from the borders."""
    weights = []
    for tile in tiles:
        classes = tile.classes.ravel().tolist()
        away = [BORDER_REACH] * len(classes)
        edge = set()
        for at, kind in enumerate(classes):
            for beside in (at + 1 if (at + 1) % TILE else at, at + TILE if at + TILE < len(classes) else at):
                if classes[beside] != kind:
                    edge |= {at, beside}
        for distance in range(BORDER_REACH):
            for at in edge:
                away[at] = distance
            around = {at + step for at in edge for step in (-TILE, -1, 1, TILE)}
            edge = {at for at in around if 0 <= at < len(away) and away[at] == BORDER_REACH}
        weights.append([1 + BORDER_WEIGHT * (1 - distance / BORDER_REACH) for distance in away])
    slow["weigh_borders"]()
    return weights


def stack_tiles(tiles: list[Tile], weights: list[list[float]]) -> Batch:
    pixels = torch.from_numpy(np.stack([tile.pixels for tile in tiles]))
    classes = torch.from_numpy(np.stack([tile.classes for tile in tiles])).long()
    batch = pixels, classes, torch.tensor(weights).view_as(classes)
    slow["stack_tiles"]()
    return batch


class Region:
    """Batches of one rank, made by itself or by its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._pixels, self._tiles = PIXELS_PER_EFFORT * args.crops, args.batch / ROWS_PER_TILE
        self._scenes = Scenes(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._dice, self._watch = random.Random(rank), watch
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._has_workers = args.workers > 0
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._prepare(self._scenes.read_scene(), 1.0)

    def next_batch(self, length: float) -> Batch:
        with self._watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self._scenes.read_scene()
        with self._watch.part("prepare"):
            return found if self._has_workers else self._prepare(found, length)

    def _prepare(self, block: bytes, length: float) -> Batch:
        side = max(TILE, min(math.isqrt(int(self._pixels * length)), math.isqrt(len(block) // BANDS)))
        classes = fill_fields(trace_fields(block, side), side)
        scene = balance_colours(paint_bands(block, classes))
        count = max(1, int(self._tiles * length + self._dice.random()))  # right on the average
        tiles = cut_tiles(scene, classes, count, self._dice)
        draw_clouds(tiles, self._dice)
        return stack_tiles(tiles, weigh_borders(tiles))


def convolution(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.GroupNorm(4, after), nn.ReLU())


class UNet(nn.Module):
    """Down by halves and up again; on the way up each level sees what it was on the way down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(1, width // 64) * 4
        sizes = (inner, 2 * inner, 4 * inner, 8 * inner)
        self.down = nn.ModuleList(convolution(*pair) for pair in itertools.pairwise((BANDS, *sizes)))
        self.up = nn.ModuleList(
            convolution(low + high, high) for high, low in reversed(list(itertools.pairwise(sizes)))
        )
        self.head = nn.Conv2d(inner, CLASSES, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        levels = [self.down[0](pixels)]
        for convolve in self.down[1:]:
            levels.append(convolve(F.max_pool2d(levels[-1], 2)))
        found = levels.pop()
        for convolve in self.up:
            found = convolve(torch.cat((F.interpolate(found, scale_factor=2.0), levels.pop()), dim=1))
        return self.head(found)


def cover_loss(said: Tensor, classes: Tensor, weights: Tensor, by_class: Tensor) -> Tensor:
    """Of each pixel by its place and its class; and how far areas overlap, whatever their size."""
    by_pixel = F.cross_entropy(said, classes, by_class, reduction="none") * weights
    shares, wanted = said.softmax(dim=1), F.one_hot(classes, CLASSES).movedim(-1, 1)
    overlap = 2 * (shares * wanted).sum(dim=(0, 2, 3)) / (shares + wanted).sum(dim=(0, 2, 3)).clamp(min=1.0)
    return by_pixel.mean() + 1 - overlap.mean()


class Nodes:
    """Means over all ranks, by way of one rank of each node."""

    def __init__(self, rank: int, world: int) -> None:
        self._world = world
        nodes: list[int] = [0] * world
        dist.all_gather_object(nodes, int(os.environ.get("GROUP_RANK", "0")))
        beside = [[rank for rank, its in enumerate(nodes) if its == node] for node in sorted(set(nodes))]
        groups = [dist.new_group(ranks) for ranks in beside]  # all ranks make all groups
        self._across = dist.new_group([ranks[0] for ranks in beside])
        mine = next(number for number, ranks in enumerate(beside) if rank in ranks)
        self._inside, self._first = groups[mine], beside[mine][0]
        self._is_first = rank == self._first

    def average(self, row: Tensor) -> None:
        dist.reduce(row, self._first, group=self._inside)
        if self._is_first:
            dist.all_reduce(row, group=self._across)
            row /= self._world
        dist.broadcast(row, self._first, group=self._inside)


class OuterUpdate:
    """From time to time all go on from one place: from the last one, in the direction in which they went on the average."""

    def __init__(self, model: nn.Module, nodes: Nodes, watch: Stopwatch) -> None:
        self._parameters, self._nodes, self._watch = list(model.parameters()), nodes, watch
        start = parameters_to_vector(self._parameters).detach()
        dist.broadcast(start, src=0)
        self._last = nn.Parameter(start)
        self._outer = torch.optim.SGD([self._last], lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
        vector_to_parameters(start.clone(), self._parameters)

    def update(self) -> None:
        gone = self._last.detach() - parameters_to_vector(self._parameters).detach()
        with self._watch.part("backward"):
            self._nodes.average(gone)
        self._last.grad = gone
        self._outer.step()
        vector_to_parameters(self._last.detach().clone(), self._parameters)


class Confusion:
    """What was taken for what, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock, watch: Stopwatch) -> None:
        self._lock, self._watch = lock, watch
        self._table = torch.zeros(CLASSES, CLASSES)

    def tally_pixels(self, said: Tensor, classes: Tensor) -> None:
        pairs = (classes * CLASSES + said.argmax(dim=1)).flatten().bincount(minlength=CLASSES**2)
        with self._lock:
            self._table += pairs.view(CLASSES, CLASSES)
        slow["tally_pixels"]()

    def overlap_of_all(self) -> float:
        """Intersection over union, the mean of the classes, over all ranks since the last time."""
        with self._watch.part("backward"):
            dist.all_reduce(self._table)
        right = self._table.diagonal()
        either = self._table.sum(dim=0) + self._table.sum(dim=1) - right
        self._table = torch.zeros(CLASSES, CLASSES)
        return float((right / either.clamp(min=1.0)).mean())


class Trainer:
    """The loop, and what it needs; the model begins anew with another width."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self._args, self._rank = args, rank
        self._watch = Stopwatch(Recorder(args.dir / f"rank{rank}.steps"))
        self._control = Control(args.dir / f"rank{rank}.control")
        self._features, self._lengths = features_of(args, rank), Lengths(rank, world)
        self._region, self._nodes = Region(args, rank, self._watch), Nodes(rank, world)
        self._confusion = Confusion(self._features.metrics_thread.lock, self._watch)
        self._jitter = random.Random(rank)
        self._build(args.width, 1.0)

    def _build(self, width: int, device: float) -> None:
        self._device_s = self._args.device_ms / 1000 * device
        self._model = UNet(width)
        self._outer = OuterUpdate(self._model, self._nodes, self._watch)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=RATE)
        self._rate = torch.optim.lr_scheduler.PolynomialLR(self._optimizer, total_iters=FADES_OVER, power=0.9)

    def fit(self) -> None:
        for step in range(self._args.steps) if self._args.steps else itertools.count():
            self._watch.begin()
            self._follow_orders(step)
            length = self._lengths.of_step(step)
            batch = self._region.next_batch(length)
            with self._watch.part("prepare"):
                self._features.before_forward()
            loss, said = self._train_batch(batch, length)
            if step % SYNCED_EVERY == SYNCED_EVERY - 1:
                with self._watch.part("optimizer"):
                    self._outer.update()
            self._confusion.tally_pixels(said, batch[1])
            if step % COUNTED_EVERY == COUNTED_EVERY - 1:
                overlap = self._confusion.overlap_of_all()
                if self._rank == 0:
                    print(f"[{step + 1}] loss {loss:.3f}, overlap {overlap:.3f}", flush=True)
            self._features.after_step(step)
            self._watch.end(step)

    def _follow_orders(self, step: int) -> None:
        if self._control.poll(step):
            for part in (self._features, self._lengths, self._region.loader):
                part.follow(self._control.orders)
        if step == self._control.orders.get("at"):
            self._build(self._control.orders["width"], self._control.orders["device"])

    def _weigh_classes(self, classes: Tensor) -> Tensor:
        """What is rare on all ranks together counts more."""
        counts = classes.flatten().bincount(minlength=CLASSES).float()
        with self._watch.part("backward"):
            dist.all_reduce(counts)
        rare = (counts.sum() / counts.clamp(min=1.0)).sqrt()
        return rare / rare.mean()

    def _compute_on_device(self, share: float, length: float) -> None:
        with self._watch.part("device"):
            device_wait(self._device_s * share * length * self._jitter.uniform(0.98, 1.02))

    def _train_batch(self, batch: Batch, length: float) -> tuple[float, Tensor]:
        """The loss, and what was said of each pixel."""
        pixels, classes, weights = batch
        with self._watch.part("forward"):
            by_class = self._weigh_classes(classes)
            said = self._model(pixels)
            loss = cover_loss(said, classes, weights, by_class)
        self._compute_on_device(IN_FORWARD, length)
        with self._watch.part("forward"):  # nobody is waited for: the rank's own time
            loss.backward()
        self._compute_on_device(1 - IN_FORWARD, length)
        with self._watch.part("optimizer"):
            nn.utils.clip_grad_norm_(self._model.parameters(), MOST_NORM)
            self._optimizer.step()
            self._rate.step()
            self._optimizer.zero_grad()
        return loss.item(), said.detach()


if __name__ == "__main__":
    run(lambda args, rank, world: Trainer(args, rank, world).fit())
