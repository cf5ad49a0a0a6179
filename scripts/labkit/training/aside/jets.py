"""What a jet of particles began as, at a collider: another shape of the lab's job, with the same options and files.

Deposits of energy are filled into towers, and clusters are what climbs to the same tower, in plain Python; clusters become jets by the
anti-kt rule, and a deep set says from their constituents whether a quark, a gluon or a heavy boson was there. In all else an ordinary
script: a data loader that collates in the same process, DDP as it comes, a warm-up, a line of progress now and then, and an evaluation
every fortieth step. As with a real device, most of its time passes inside the backward pass, before the gradients are summed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

RECORD = np.dtype([("eta", "u1"), ("phi", "u1"), ("energy", "<u2")])
DEPOSITS, PARTONS, EFFORT_PER_EVENT = 160, 2, 5
KINDS = ("quark", "gluon", "boson")
SPREADS, PRONGS = np.array([0.4, 0.6, 0.3]), np.array([0.0, 0.0, 0.6])  # how wide, and how far apart its two halves
SOFTEST, STEEPNESS = 2.0, 2.5
ROWS, COLUMNS, REACH = 48, 64, 2.4  # towers along the beam and around it
ROW_SIZE, COLUMN_SIZE = 2 * REACH / ROWS, 2 * math.pi / COLUMNS
NOISE, STANDS_OUT, SEED = 0.3, 2.5, 1.2
SOFTEST_JET, RADIUS = 15.0, 0.6
SHAPES, FIGURES, CONSTITUENTS, ROWS_PER_JET = 4, 5, 16, 2
SMEARED = 0.05
IN_FORWARD = 0.35  # of the time on the device
RATE, WARM_UP, DECAY, MOST_NORM, DROPPED = 1e-3, 200, 0.01, 1.0, 0.1
EVALUATE_EVERY, LOG_EVERY, HELD_OUT = 40, 20, 2

Tower = tuple[int, int]
AROUND = [step for step in itertools.product((-1, 0, 1), repeat=2) if step != (0, 0)]
Batch = tuple[Tensor, Tensor, Tensor]  # constituents, shapes of jets, kinds


class Collisions(NamedTuple):
    """The first three by event and deposit; what was there in truth by event and parton."""

    eta: np.ndarray
    phi: np.ndarray
    energy: np.ndarray
    partons: list[list[tuple[float, float, int]]]


class Cluster(NamedTuple):
    pt: float
    eta: float
    phi: float


@dataclass(frozen=True)
class Jet:
    pt: float
    eta: float
    phi: float
    constituents: list[Cluster]
    shape: tuple[float, ...] = ()
    kind: int = -1


def wrapped(angle: Any) -> Any:
    """The same angle from -π to π."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


def unpack_deposits(chunk: bytes, events: int) -> Collisions:
    """Each deposit comes from one of the partons of its event, those of a boson from one of its two halves."""
    events = max(1, min(events, len(chunk) // (DEPOSITS * RECORD.itemsize)))
    records = np.frombuffer(chunk, dtype=RECORD, count=events * DEPOSITS).reshape(events, DEPOSITS)
    first, second = records[:, :PARTONS], records[:, PARTONS : 2 * PARTONS]
    kinds = first["eta"] % len(KINDS)
    eta, phi = (second["eta"] / 127.5 - 1) * (REACH - 0.8), second["phi"] * (2 * np.pi / 256)
    whose, half = np.arange(DEPOSITS) % PARTONS, np.arange(DEPOSITS) // PARTONS % 2 - 0.5
    wide = SPREADS[kinds][:, whose]
    found = Collisions(
        eta[:, whose] + PRONGS[kinds][:, whose] * half + wide * (records["eta"] / 127.5 - 1),
        (phi[:, whose] + wide * (records["phi"] / 127.5 - 1)) % (2 * np.pi),
        SOFTEST * ((records["energy"] + 1.0) / 65537) ** (-1 / STEEPNESS),
        [list(zip(*row, strict=True)) for row in zip(eta.tolist(), phi.tolist(), kinds.tolist(), strict=True)],
    )
    slow["unpack_deposits"]()
    return found


def fill_towers(found: Collisions, rng: np.random.Generator) -> np.ndarray:
    """Energy by event, row and column; the electronics say something everywhere."""
    events = len(found.energy)
    row = ((found.eta + REACH) / ROW_SIZE).astype(np.int64).clip(0, ROWS - 1)
    column = (found.phi / COLUMN_SIZE).astype(np.int64) % COLUMNS
    cells = (np.arange(events)[:, None] * ROWS + row) * COLUMNS + column
    filled = np.bincount(cells.ravel(), found.energy.ravel(), minlength=events * ROWS * COLUMNS)
    towers = filled.reshape(events, ROWS, COLUMNS) + rng.normal(0, NOISE, (events, ROWS, COLUMNS))
    slow["fill_towers"]()
    return towers


def suppress_noise(towers: np.ndarray) -> np.ndarray:
    """What each tower has beyond its row's median, which is noise and other collisions; nothing where it does not stand out."""
    beyond = towers - np.median(towers, axis=2, keepdims=True)
    deviation = 1.48 * np.median(np.abs(beyond), axis=2, keepdims=True)
    beyond[beyond < STANDS_OUT * deviation] = 0.0
    slow["suppress_noise"]()
    return beyond


def grow_clusters(towers: np.ndarray) -> list[list[Cluster]]:
    """Each tower belongs to the cluster of its highest neighbour; where none is higher is the middle of one."""
    events = []
    for energies in towers:
        heights = {
            tower: float(energies[tower]) for tower in zip(*map(np.ndarray.tolist, energies.nonzero()), strict=True)
        }
        middles: dict[Tower, Tower] = {}
        members: dict[Tower, list[Tower]] = defaultdict(list)
        for tower in sorted(heights, key=heights.__getitem__, reverse=True):
            highest, height = tower, heights[tower]
            for down, along in AROUND:
                beside = (tower[0] + down, (tower[1] + along) % COLUMNS)
                if heights.get(beside, 0.0) > height:
                    highest, height = beside, heights[beside]
            middles[tower] = tower if highest == tower else middles[highest]
            members[middles[tower]].append(tower)
        events.append([_sum_up(middle, its, heights) for middle, its in members.items() if heights[middle] > SEED])
    slow["grow_clusters"]()
    return events


def _sum_up(middle: Tower, towers: list[Tower], heights: dict[Tower, float]) -> Cluster:
    energy = down = along = 0.0
    for row, column in towers:
        height = heights[row, column]
        energy += height
        down += height * (row - middle[0])
        along += height * ((column - middle[1] + COLUMNS // 2) % COLUMNS - COLUMNS // 2)
    eta = (middle[0] + 0.5 + down / energy) * ROW_SIZE - REACH
    phi = (middle[1] + 0.5 + along / energy) * COLUMN_SIZE % (2 * math.pi)
    return Cluster(energy / math.cosh(eta), eta, phi)


def find_jets(events: list[list[Cluster]]) -> list[list[Jet]]:
    """The anti-kt rule: what is near a hard one joins it first, and one that has nothing near is a jet."""
    found = []
    for clusters in events:
        pt, eta, phi = (np.array([cluster[field] for cluster in clusters]) for field in range(3))
        members, jets, soft = [[cluster] for cluster in clusters], [], pt**-2
        apart = (eta[:, None] - eta) ** 2 + wrapped(phi[:, None] - phi) ** 2
        near = np.minimum.outer(soft, soft) * apart / RADIUS**2
        np.fill_diagonal(near, soft)
        for _ in clusters:
            one, gone = divmod(int(near.argmin()), len(clusters))
            if one == gone:
                jets.append(Jet(float(pt[one]), float(eta[one]), float(phi[one]), members[one]))
            else:
                share = pt[gone] / (pt[one] + pt[gone])
                eta[one] += share * (eta[gone] - eta[one])
                phi[one] += share * wrapped(phi[gone] - phi[one])
                pt[one], members[one] = pt[one] + pt[gone], members[one] + members[gone]
                soft[one] = pt[one] ** -2
                apart = (eta - eta[one]) ** 2 + wrapped(phi - phi[one]) ** 2
                row = np.minimum(soft, soft[one]) * apart / RADIUS**2
                row[one] = soft[one]
                near[one] = near[:, one] = row
            eta[gone] = near[gone] = near[:, gone] = np.inf  # far from all others from now on
        found.append([jet for jet in jets if jet.pt > SOFTEST_JET])
    slow["find_jets"]()
    return found


def match_partons(events: list[list[Jet]], partons: list[list[tuple[float, float, int]]]) -> list[Jet]:
    """Jets of all events that lie where a parton went, each with its kind."""
    matched = []
    for jets, its_partons in zip(events, partons, strict=True):
        for jet in jets:
            away = {kind: math.hypot(jet.eta - eta, wrapped(jet.phi - phi)) for eta, phi, kind in its_partons}
            kind = min(away, key=away.__getitem__)
            if away[kind] < RADIUS:
                matched.append(replace(jet, kind=kind))
    matched = matched or [Jet(1.0, 0.0, 0.0, [Cluster(1.0, 0.0, 0.0)], kind=0)]  # nothing hit the detector
    slow["match_partons"]()
    return matched


def measure_shapes(jets: list[Jet]) -> list[Jet]:
    """Of each jet how hard, heavy and wide it is, and whether it has one middle or two."""
    shaped = []
    for jet in jets:
        parts = sorted(jet.constituents, reverse=True)
        square = width = one_axis = two_axes = 0.0
        for number, (pt, eta, phi) in enumerate(parts):
            width += pt * math.hypot(eta - jet.eta, wrapped(phi - jet.phi))
            from_axes = [math.hypot(eta - axis.eta, wrapped(phi - axis.phi)) for axis in parts[:2]]
            one_axis += pt * from_axes[0]
            two_axes += pt * min(from_axes)
            for other in parts[:number]:
                square += 2 * pt * other.pt * (math.cosh(eta - other.eta) - math.cos(phi - other.phi))
        split = two_axes / one_axis if one_axis else 0.0
        shape = (math.log(jet.pt) / 5, math.sqrt(max(0.0, square)) / jet.pt, width / jet.pt, split)
        shaped.append(replace(jet, shape=shape))
    slow["measure_shapes"]()
    return shaped


def smear_jets(jets: list[Jet], count: int, dice: random.Random) -> list[Jet]:
    """So many of them, mirrored or not, with energies that are measured a little differently each time."""
    smeared = []
    for jet in itertools.islice(itertools.cycle(dice.sample(jets, len(jets))), count):
        side, parts = dice.choice((-1, 1)), []
        for pt, eta, phi in jet.constituents:
            parts.append(Cluster(pt * max(0.1, dice.gauss(1, SMEARED)), jet.eta + side * (eta - jet.eta), phi))
        smeared.append(replace(jet, constituents=parts))
    slow["smear_jets"]()
    return smeared


def collate_jets(jets: list[Jet]) -> Batch:
    """The hardest constituents of each, seen from the middle of the jet; zeros where there are fewer."""
    seen = np.zeros((len(jets), CONSTITUENTS, FIGURES), dtype=np.float32)
    for number, jet in enumerate(jets):
        hardest = sorted(jet.constituents, reverse=True)[:CONSTITUENTS]
        for place, (pt, eta, phi) in enumerate(hardest):
            across, around = eta - jet.eta, wrapped(phi - jet.phi)
            seen[number, place] = pt / jet.pt, math.log(pt), across, around, math.hypot(across, around)
    shapes = torch.tensor([jet.shape or (0.0,) * SHAPES for jet in jets])
    batch = torch.from_numpy(seen), shapes, torch.tensor([jet.kind for jet in jets])
    slow["collate_jets"]()
    return batch


class JetDataset(IterableDataset[list[Jet]]):
    """Jets enough for a batch, `length` times as many as usual, from what this rank's share of the detector wrote."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self.length = 1.0
        self._events, self._jets = args.crops / EFFORT_PER_EVENT, args.batch / ROWS_PER_JET
        self._chunk_bytes, self._watch = args.sample_kib * 1024, watch
        self._places = places(args.data / f"rank{rank}", self._chunk_bytes)
        self._dice, self._rng = random.Random(rank), np.random.default_rng(rank)

    def __iter__(self) -> Iterator[list[Jet]]:
        while True:
            with self._watch.part("load"):
                chunk = self.read_events()
            yield self.reconstruct(chunk)

    def read_events(self) -> bytes:
        """A chunk, read past the page cache."""
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        chunk = os.pread(fd, self._chunk_bytes, min(offset, size - self._chunk_bytes))
        slow["read_events"]()
        return chunk

    def reconstruct(self, chunk: bytes) -> list[Jet]:
        found = unpack_deposits(chunk, round(self._events * self.length))
        clusters = grow_clusters(suppress_noise(fill_towers(found, self._rng)))
        jets = measure_shapes(match_partons(find_jets(clusters), found.partons))
        return smear_jets(jets, max(1, round(self._jets * self.length)), self._dice)


class JetLoader:
    """Batches for the training loop, made in this process or by workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._dataset, self._watch = JetDataset(args, rank, watch), watch
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self.workers = Loader(self._in_worker, args.workers)
        self.workers.follow({})
        self._here = None if args.workers else iter(DataLoader(self._dataset, None, collate_fn=collate_jets))

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return collate_jets(self._dataset.reconstruct(self._dataset.read_events()))

    def next_batch(self, length: float = 1.0) -> Batch:
        self._dataset.length = length
        with self._watch.part("load" if self._here is None else "prepare"):
            return self.workers.next_batch() if self._here is None else next(self._here)


class OnDevice(torch.autograd.Function):
    """Where the device computes, on the way forth and on the way back; values stay as they are."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, compute: Callable[[float], None]) -> Tensor:
        ctx.compute = compute
        compute(IN_FORWARD)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.compute(1 - IN_FORWARD)
        return gradient, None


class DeepSet(nn.Module):
    def __init__(self, width: int, compute: Callable[[float], None]) -> None:
        super().__init__()
        inner = width // 4
        self.particle = nn.Sequential(nn.Linear(FIGURES, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU())
        sizes = (inner + SHAPES, width, width, inner)
        layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in itertools.pairwise(sizes)]
        self.jet = nn.Sequential(*itertools.chain(*layers), nn.Dropout(DROPPED), nn.Linear(inner, len(KINDS)))
        self._compute = compute

    def forward(self, constituents: Tensor, shapes: Tensor) -> Tensor:
        is_there = (constituents[..., :1] > 0).float()
        pooled = (self.particle(constituents) * is_there).sum(dim=1) / is_there.sum(dim=1).clamp(min=1)
        return self.jet(torch.cat((OnDevice.apply(pooled, self._compute), shapes), dim=1))


class Progress:
    """Means for the lines of progress, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.loss = self.accuracy = 0.0

    def update_progress(self, loss: float, said: Tensor, kinds: Tensor) -> None:
        right = float((said.argmax(dim=1) == kinds).float().mean())
        with self._lock:
            self.loss += (loss - self.loss) / LOG_EVERY
            self.accuracy += (right - self.accuracy) / LOG_EVERY
        slow["update_progress"]()


class Trainer:
    """Model, optimizer and schedule; made anew for another width."""

    def __init__(self, width: int, device_s: float, rank: int, watch: Stopwatch) -> None:
        self._device_s, self._watch, self._jitter, self._length = device_s, watch, random.Random(rank), 1.0
        self.model = DDP(DeepSet(width, self._compute_on_device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=DECAY)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=WARM_UP)

    def _compute_on_device(self, share: float) -> None:
        with self._watch.part("device"):
            device_wait(self._device_s * share * self._length * self._jitter.uniform(0.98, 1.02))

    def train_step(self, batch: Batch, length: float) -> tuple[float, Tensor]:
        """The loss, and what was said."""
        self._length = length
        self.model.train()
        with self._watch.part("forward"):
            said = self.model(*batch[:2])
            loss = F.cross_entropy(said, batch[2])
        with self._watch.part("backward"):
            loss.backward()
        with self._watch.part("optimizer"):
            nn.utils.clip_grad_norm_(self.model.parameters(), MOST_NORM)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return loss.item(), said.detach()

    @torch.no_grad()
    def evaluate(self, held_out: list[Batch]) -> list[float]:
        """Of each kind the share that is found, over all ranks."""
        self.model.eval()
        self._length = 1.0
        table = torch.zeros(len(KINDS), len(KINDS))
        with self._watch.part("forward"):
            for constituents, shapes, kinds in held_out:
                said = self.model.module(constituents, shapes).argmax(dim=1)
                table.index_put_((kinds, said), torch.ones(len(kinds)), accumulate=True)
        with self._watch.part("backward"):
            dist.all_reduce(table)
        return (table.diagonal() / table.sum(dim=1).clamp(min=1)).tolist()


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, loader = features_of(args, rank), Lengths(rank, world), JetLoader(args, rank, watch)
    held_out = [loader.next_batch() for _ in range(HELD_OUT)]
    trainer, progress = Trainer(args.width, args.device_ms / 1000, rank, watch), Progress(features.metrics_thread.lock)
    for step in range(args.steps) if args.steps else itertools.count():
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, loader.workers):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            device_s = args.device_ms / 1000 * control.orders["device"]
            trainer = Trainer(control.orders["width"], device_s, rank, watch)
        length = lengths.of_step(step)
        batch = loader.next_batch(length)
        with watch.part("prepare"):
            features.before_forward()
        loss, said = trainer.train_step(batch, length)
        progress.update_progress(loss, said, batch[2])
        if rank == 0 and step % LOG_EVERY == LOG_EVERY - 1:
            means = f"loss {progress.loss:.4f} | acc {progress.accuracy:.3f}"
            print(f"step {step + 1:6d} | {means} | lr {trainer.scheduler.get_last_lr()[0]:.2e}", flush=True)
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            found = trainer.evaluate(held_out)
            if rank == 0:
                told = ", ".join(f"{kind} {share:.1%}" for kind, share in zip(KINDS, found, strict=True))
                print(f"eval at {step + 1}: {told}", flush=True)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
