"""Rain of the next minutes, from radar: another shape of the lab's job, with the same options and files.

Each rank has a radar of its own and one strip of a map that no rank has the whole of. Sweeps are cleaned and projected with numpy. A
recurrent network goes over the frames one by one, and before each convolution strips lend their outermost row to the strips above and
below; gradients of these rows go back. In the middle of the model all find the mean of the weather on the whole map. All gradients are
summed as one row, and every fortieth step the model is asked for two frames in a row, and all count which rain it foresaw.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
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
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

BEAMS_PER_EFFORT, GATES, FRAMES = 3, 32, 4  # the last frame is the one to be foretold
COLUMNS, BATCH_PER_ROW = 32, 8
LOWEST_DBZ, DBZ_RANGE, ECHO_DBZ = -10.0, 65.0, 15.0
FEWEST_BESIDE = 4  # echoes around one that is believed
LOSS_PER_GATE = 2e-4  # what a strong echo takes from those behind it
FARTHEST = 2  # cells that echoes go from frame to frame
MARSHALL_A, MARSHALL_B = 200.0, 1.6
USUAL_RAIN, USUAL_SPREAD = 0.8, 0.6
INPUTS = 3  # rain, and where it goes
WET, HEAVY_WEIGHT = 0.5, 2.0
IN_FORWARD = 0.5  # of the time on the device
RATE, FADES, MOST_NORM = 1e-3, 0.9998, 1.0
SCORED_EVERY, FORESEEN = 40, 2

Around = Callable[[Tensor], Tensor]


class Case(NamedTuple):
    seen: Tensor  # frame, input, row, column
    wanted: Tensor  # row, column


class Archive:
    """The volumes of this rank's radar, read past the page cache."""

    def __init__(self, folder: Path, volume_bytes: int) -> None:
        self._volume_bytes = volume_bytes
        self._places = places(folder, volume_bytes)

    def read_volume(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        volume = os.pread(fd, self._volume_bytes, min(offset, size - self._volume_bytes))
        slow["read_volume"]()
        return volume


def unpack_sweeps(volume: bytes, beams: int) -> np.ndarray:
    """Reflectivity by frame, beam and gate; half of a frame is what the one before was."""
    beams = min(beams, len(volume) // (FRAMES * GATES))
    codes = np.frombuffer(volume, dtype=np.uint8, count=FRAMES * beams * GATES).reshape(FRAMES, beams, GATES)
    sweeps = LOWEST_DBZ + codes.astype(np.float32) * (DBZ_RANGE / 255)
    for frame in range(1, FRAMES):
        sweeps[frame] = (sweeps[frame - 1] + sweeps[frame]) / 2
    slow["unpack_sweeps"]()
    return sweeps


def remove_speckle(sweeps: np.ndarray) -> np.ndarray:
    """Echoes with too few others around them are birds, or a ship."""
    echo = np.pad((sweeps > ECHO_DBZ).astype(np.int8), ((0, 0), (1, 1), (1, 1)))
    beams, gates = sweeps.shape[1:]
    beside = sum(echo[:, i : i + beams, j : j + gates] for i, j in itertools.product(range(3), repeat=2))
    cleaned = np.where(beside > FEWEST_BESIDE, sweeps, np.float32(LOWEST_DBZ))
    slow["remove_speckle"]()
    return cleaned


def correct_attenuation(sweeps: np.ndarray) -> np.ndarray:
    """From gate to gate, as what was lost on the way grows with what was there."""
    lost = np.zeros(sweeps.shape[:2], dtype=np.float32)
    corrected = np.empty_like(sweeps)
    for gate in range(sweeps.shape[2]):
        corrected[:, :, gate] = sweeps[:, :, gate] + lost
        lost += LOSS_PER_GATE * np.maximum(corrected[:, :, gate], 0) ** 2 / 10
        np.minimum(lost, 10, out=lost)
    slow["correct_attenuation"]()
    return corrected


def track_echoes(sweeps: np.ndarray) -> tuple[int, int]:
    """By how many beams and gates the frame before the last is best moved to become the last that is seen."""
    before, after = sweeps[-3], sweeps[-2, FARTHEST:-FARTHEST, FARTHEST:-FARTHEST]
    beams, gates = after.shape
    apart = {}
    for down, out in itertools.product(range(-FARTHEST, FARTHEST + 1), repeat=2):
        moved = before[FARTHEST - down :, FARTHEST - out :][:beams, :gates]
        apart[down, out] = float(np.abs(moved - after).mean())
    slow["track_echoes"]()
    return min(apart, key=lambda shift: apart[shift])


def project_beams(sweeps: np.ndarray, rows: int) -> np.ndarray:
    """From beams, which fan out over the strip, to its cells: the mean of what falls in each."""
    beams, gates = sweeps.shape[1:]
    angles = np.linspace(0, np.pi, beams, endpoint=False)[:, None]
    away = (np.arange(gates) + 0.5) / gates
    row = np.minimum((away * np.sin(angles) * rows).astype(np.int64), rows - 1)
    column = np.clip(((1 + away * np.cos(angles)) * (COLUMNS / 2)).astype(np.int64), 0, COLUMNS - 1)
    cells = (row * COLUMNS + column).ravel()
    count = np.maximum(np.bincount(cells, minlength=rows * COLUMNS), 1)
    sums = [np.bincount(cells, sweep.ravel(), minlength=rows * COLUMNS) for sweep in sweeps]
    grid = (np.stack(sums) / count).reshape(FRAMES, rows, COLUMNS)
    slow["project_beams"]()
    return grid


def to_rain_rate(grid: np.ndarray) -> np.ndarray:
    """Millimetres an hour, as a logarithm, against what is usual."""
    rain = np.log1p((10 ** (grid / 10) / MARSHALL_A) ** (1 / MARSHALL_B))
    rain = ((rain - USUAL_RAIN) / USUAL_SPREAD).astype(np.float32)
    slow["to_rain_rate"]()
    return rain


def stack_frames(rain: np.ndarray, drift: tuple[int, int]) -> Case:
    seen = np.empty((FRAMES - 1, INPUTS, *rain.shape[1:]), dtype=np.float32)
    seen[:, 0] = rain[:-1]
    seen[:, 1], seen[:, 2] = (shift / FARTHEST for shift in drift)
    case = Case(torch.from_numpy(seen), torch.from_numpy(rain[-1].copy()))
    slow["stack_frames"]()
    return case


class Station:
    """The cases of this rank's strip, worked out by itself or by its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._beams, self._rows = BEAMS_PER_EFFORT * args.crops, args.batch / BATCH_PER_ROW
        self._archive, self._watch = Archive(args.data / f"rank{rank}", args.sample_kib * 1024), watch
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._dice = random.Random(rank)
        self._has_workers = args.workers > 0
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def _in_worker(self, number: int) -> Case:
        self._its_control.poll(number)
        return self._work_out(self._archive.read_volume(), 1.0)

    def next_case(self, length: float) -> Case:
        with self._watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self._archive.read_volume()
        with self._watch.part("prepare"):
            return found if self._has_workers else self._work_out(found, length)

    def _work_out(self, volume: bytes, length: float) -> Case:
        cleaned = remove_speckle(unpack_sweeps(volume, int(self._beams * length)))
        sweeps = correct_attenuation(cleaned)
        drift = track_echoes(sweeps)
        rows = max(2, int(self._rows * length + self._dice.random()))  # right on the average
        return stack_frames(to_rain_rate(project_beams(sweeps, rows)), drift)


class Strips:
    """The ranks from the north to the south. Nothing lies beyond the first and the last."""

    def __init__(self, rank: int, world: int, watch: Stopwatch) -> None:
        self._beside = [one if 0 <= one < world else None for one in (rank - 1, rank + 1)]
        self._watch = watch

    def swap(self, north: Tensor, south: Tensor) -> list[Tensor]:
        """What comes from the north and from the south, for what is lent to both."""
        lent = [north.contiguous(), south.contiguous()]
        found = [torch.zeros(one.shape) for one in lent]
        works = []
        for rank, sent, into in zip(self._beside, lent, found, strict=True):
            if rank is not None:
                works += [dist.isend(sent, rank), dist.irecv(into, rank)]
        with self._watch.part("backward"):
            for work in works:
                work.wait()
        return found


class Lent(torch.autograd.Function):
    """Channels of a strip, with a row of each neighbour around them."""

    @staticmethod
    def forward(ctx: Any, strip: Tensor, strips: Strips) -> Tensor:
        ctx.strips = strips
        north, south = strips.swap(strip[:, :1], strip[:, -1:])
        return torch.cat((north, strip, south), dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        north, south = ctx.strips.swap(gradient[:, :1], gradient[:, -1:])
        own = gradient[:, 1:-1].clone()
        own[:, :1] += north
        own[:, -1:] += south
        return own, None


class MeanOfAll(torch.autograd.Function):
    """The mean over the ranks, of values and of their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, watch: Stopwatch) -> Tensor:
        mean = values / dist.get_world_size()
        with watch.part("backward"):
            dist.all_reduce(mean)
        return mean

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        mean = gradient / dist.get_world_size()
        dist.all_reduce(mean)
        return mean, None


class Recurrence(nn.Module):
    """A convolution that remembers: what is new, what is kept, what is shown; `around` adds the rows of the neighbours."""

    def __init__(self, hidden: int, around: Around) -> None:
        super().__init__()
        self.gates = nn.Conv2d(INPUTS + hidden, 4 * hidden, 3, padding=(0, 1))
        self._around = around

    def forward(self, frame: Tensor, shown: Tensor, kept: Tensor, is_first: bool) -> tuple[Tensor, Tensor]:
        around = F.pad(shown, (0, 0, 1, 1)) if is_first else self._around(shown)  # nobody has anything to lend at first
        *gates, fresh = self.gates(torch.cat((frame, around))).chunk(4)
        take, keep, show = (gate.sigmoid() for gate in gates)
        kept = keep * kept + take * fresh.tanh()
        return show * kept.tanh(), kept


class Nowcaster(nn.Module):
    """Rain of the next frame; `compute` is called before each frame that is seen."""

    def __init__(self, width: int, strips: Strips, watch: Stopwatch, compute: Callable[[], None]) -> None:
        super().__init__()
        self._hidden = max(4, width // 32)
        self._around: Around = lambda strip: Lent.apply(strip, strips)
        self.recurrence = Recurrence(self._hidden, self._around)
        self.weather = nn.Sequential(
            nn.Linear(self._hidden, width),
            nn.SiLU(),
            nn.Linear(width, width // 2),
            nn.SiLU(),
            nn.Linear(width // 2, self._hidden),
        )
        self.rain = nn.Conv2d(self._hidden, 1, 1)
        self._watch, self._compute = watch, compute

    def forward(self, seen: Tensor) -> Tensor:
        frames = self._around(seen.flatten(0, 1)).unflatten(0, seen.shape[:2])
        shown = kept = torch.zeros(self._hidden, *seen.shape[2:])
        for number, frame in enumerate(frames):
            self._compute()
            shown, kept = self.recurrence(frame, shown, kept, number == 0)
        weather = self.weather(MeanOfAll.apply(shown.mean(dim=(1, 2)), self._watch))
        return seen[-1, 0] + self.rain(shown * (1 + weather[:, None, None])).squeeze(0)


def rain_loss(said: Tensor, wanted: Tensor) -> Tensor:
    """Much rain counts more."""
    return ((1 + HEAVY_WEIGHT * wanted.clamp(min=0)) * (said - wanted).square()).mean()


class Scores:
    """The latest losses, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.latest: deque[float] = deque(maxlen=SCORED_EVERY)

    def store_scores(self, loss: Tensor) -> None:
        with self._lock:
            self.latest.append(loss.item())
        slow["store_scores"]()


class Forecaster:
    """The model, and what changes it; begins anew with another width."""

    def __init__(self, width: int, device_s: float, rank: int, world: int, watch: Stopwatch) -> None:
        self._device_s, self._world, self._watch = device_s, world, watch
        self._length, self._jitter = 1.0, random.Random(rank)

        def compute() -> None:
            self._compute_on_device(IN_FORWARD / (FRAMES - 1))

        self._model = Nowcaster(width, Strips(rank, world, watch), watch, compute)
        self._weights = list(self._model.parameters())
        start = parameters_to_vector(self._weights).detach()
        dist.broadcast(start, src=0)
        vector_to_parameters(start, self._weights)
        self._optimizer = torch.optim.Adam(self._weights, lr=RATE, fused=True)
        self._rate = torch.optim.lr_scheduler.ExponentialLR(self._optimizer, gamma=FADES)

    def _compute_on_device(self, share: float) -> None:
        with self._watch.part("device"):
            device_wait(self._device_s * share * self._length * self._jitter.uniform(0.98, 1.02))

    def learn(self, case: Case, length: float) -> Tensor:
        self._length = length
        with self._watch.part("forward"):
            loss = rain_loss(self._model(case.seen), case.wanted)
        self._compute_on_device(1 - IN_FORWARD)
        with self._watch.part("backward"):
            loss.backward()
            gradient = parameters_to_vector([one.grad for one in self._weights])
            gradient /= self._world
            dist.all_reduce(gradient)
        with self._watch.part("optimizer"):
            vector_to_parameters(gradient, [one.grad for one in self._weights])
            clip_grad_norm_(self._weights, MOST_NORM)
            self._optimizer.step()
            self._rate.step()
            self._optimizer.zero_grad()
        return loss.detach()

    @torch.no_grad()
    def score(self, case: Case) -> float:
        """Of the rain that was said or that came, how much was both; frames that were said stand for those last seen."""
        with self._watch.part("forward"):
            seen = case.seen[: 1 - FORESEEN]
            for _ in range(FORESEEN):
                following = seen[-1:].clone()
                following[0, 0] = self._model(seen)
                seen = torch.cat((seen, following))
            said, came = seen[-1, 0] > WET, case.wanted > WET
            found = torch.stack(((said & came).sum(), (said | came).sum())).double()
        with self._watch.part("backward"):
            dist.all_reduce(found)
        return float(found[0] / found[1].clamp(min=1))


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, station = features_of(args, rank), Lengths(rank, world), Station(args, rank, watch)
    scores = Scores(features.metrics_thread.lock)
    forecaster = Forecaster(args.width, args.device_ms / 1000, rank, world, watch)
    held_back: Case | None = None
    for step in range(args.steps) if args.steps else itertools.count():
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, station.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            device_s = args.device_ms / 1000 * control.orders["device"]
            forecaster = Forecaster(control.orders["width"], device_s, rank, world, watch)
        length = lengths.of_step(step)
        case = station.next_case(length)
        held_back = held_back or case
        with watch.part("prepare"):
            features.before_forward()
        scores.store_scores(forecaster.learn(case, length))
        if step % SCORED_EVERY == SCORED_EVERY - 1:
            foreseen = forecaster.score(held_back)
            if rank == 0:
                loss = sum(scores.latest) / len(scores.latest)
                print(f"{step + 1} maps: loss {loss:.4f}, {foreseen:.1%} of the rain foreseen", flush=True)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
