"""A denoiser of compressed latents: another shape of the lab's job, with the same options and files.

Latents are packed as differences in a code of two streams; numpy unpacks them, pairs each with the nearest of several noises and mixes the
two. Gradients go through DDP in half their precision. Slowly averaged weights follow the model, and every fortieth step all wait for each
other, judge the averaged weights on a sample that was held back, and draw their noise levels accordingly from then on.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import os
import random
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from features import Features, Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

LATENT, LEVELS, SIGNALS = 128, 1000, 32  # values of a latent, noise levels, values that tell the level
BLOCKS = 2
RATE, WARM_UP, MOST_NORM = 3e-4, 100, 1.0
BUCKET_MB = 0.4
JUDGED_EVERY, BANDS = 40, 8
HALF_LIFE = 500

Batch = tuple[Tensor, Tensor]


def cosine_schedule() -> tuple[np.ndarray, np.ndarray]:
    """How much of the latent is left at each level, and how much noise there is."""
    progress = (np.arange(LEVELS) + 0.5) / LEVELS
    kept = np.cos(progress * math.pi / 2)
    return kept.astype(np.float32), np.sqrt(1 - kept**2).astype(np.float32)


KEPT, NOISE = cosine_schedule()


class LatentFiles:
    """The packed latents of one rank, read past the page cache."""

    def __init__(self, folder: Path, record_bytes: int) -> None:
        self._record_bytes = record_bytes
        self._places = places(folder, record_bytes)

    def read_record(self, length: float) -> memoryview:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        wanted = min(size, int(self._record_bytes * length))
        record = os.pread(fd, wanted, min(offset, size - wanted))
        slow["read_record"]()
        return memoryview(record)


def unpack_differences(record: memoryview, count: int) -> np.ndarray:
    """Rice code: a stream of high parts, each as many zeros as it says and a one, and a stream of low parts, four bits each."""
    half = len(record) // 2
    bits = np.unpackbits(np.frombuffer(record[: min(half, count // 2)], dtype=np.uint8))
    high = np.diff(np.flatnonzero(bits), prepend=-1) - 1
    packed = np.frombuffer(record[half : half + count // 2 + 1], dtype=np.uint8)
    low = np.stack((packed >> 4, packed & 15), axis=1).ravel()
    folded = np.resize(high, count) * 16 + np.resize(low, count)
    slow["unpack_differences"]()
    return (folded >> 1) ^ -(folded & 1)  # the sign is the last bit


def restore(differences: np.ndarray) -> np.ndarray:
    """The latents themselves, each with a mean of zero and a spread of one."""
    latents = np.cumsum(differences.reshape(-1, LATENT), axis=1, dtype=np.float32)
    latents -= latents.mean(axis=1, keepdims=True)
    latents /= latents.std(axis=1, keepdims=True) + 1e-3
    slow["restore"]()
    return latents


def pair_noise(latents: np.ndarray, rng: np.random.Generator, tries: int) -> np.ndarray:
    """For each latent the nearest of some noises: what is learned from it has fewer paths that cross."""
    best = rng.standard_normal(latents.shape, dtype=np.float32)
    nearest = np.einsum("ij,ij->i", best, latents)
    for _ in range(tries):
        other = rng.standard_normal(latents.shape, dtype=np.float32)
        near = np.einsum("ij,ij->i", other, latents)
        better = near > nearest
        best[better], nearest[better] = other[better], near[better]
    slow["pair_noise"]()
    return best


def draw_levels(rng: np.random.Generator, count: int, weights: np.ndarray) -> np.ndarray:
    """More of the levels at which the model is bad."""
    band = rng.choice(BANDS, size=count, p=weights)
    levels = (band + rng.random(count)) / BANDS * LEVELS
    slow["draw_levels"]()
    return levels.astype(np.int64)


def add_noise(latents: np.ndarray, noise: np.ndarray, levels: np.ndarray) -> Batch:
    """What the model sees, the level with it, and the velocity that it is to say."""
    kept, added = KEPT[levels, None], NOISE[levels, None]
    waves = np.exp(np.linspace(0, math.log(LEVELS), SIGNALS // 2)) * (levels[:, None] / LEVELS)
    seen = np.concatenate((kept * latents + added * noise, np.sin(waves), np.cos(waves)), axis=1, dtype=np.float32)
    found = torch.from_numpy(seen), torch.from_numpy(kept * noise - added * latents)
    slow["add_noise"]()
    return found


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, width // 4), nn.Linear(width // 4, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.narrow(nn.functional.silu(self.widen(self.norm(hidden))))


def denoiser(width: int) -> nn.Sequential:
    blocks = [Block(width) for _ in range(BLOCKS)]
    return nn.Sequential(nn.Linear(LATENT + SIGNALS, width), *blocks, nn.LayerNorm(width), nn.Linear(width, LATENT))


def in_half_precision(world, bucket):  # DDP looks at the types, and does not read them from text
    """Sum a bucket of gradients over the ranks with half the bytes."""
    exact = bucket.buffer()
    sent = exact.to(torch.bfloat16).div_(world)

    def take(done: Future[list[Tensor]]) -> Tensor:
        return exact.copy_(done.value()[0])

    return dist.all_reduce(sent, async_op=True).get_future().then(take)


@dataclass
class Study:
    """All that is learned, and what it is learned with."""

    model: DistributedDataParallel
    averaged: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    device_s: float
    weights: np.ndarray = field(default_factory=lambda: np.full(BANDS, 1 / BANDS))


def new_study(width: int, device_s: float, world: int) -> Study:
    plain = denoiser(width)
    model = DistributedDataParallel(plain, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    model.register_comm_hook(world, in_half_precision)
    averaged = copy.deepcopy(plain).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    return Study(model, averaged, optimizer, schedule, device_s)


@torch.no_grad()
def follow_slowly(averaged: nn.Module, model: nn.Module, step: int) -> None:
    share = 1 - 0.5 ** (1 / min(HALF_LIFE, step + 1))
    for slowly, new in zip(averaged.parameters(), model.parameters(), strict=True):
        slowly.lerp_(new, share)


def update(study: Study, step: int) -> float:
    """The optimizer, and what follows the model; the norm of the gradients."""
    norm = nn.utils.clip_grad_norm_(study.model.parameters(), MOST_NORM)
    study.optimizer.step()
    study.schedule.step()
    study.optimizer.zero_grad()
    follow_slowly(study.averaged, study.model, step)
    return float(norm)


@torch.no_grad()
def judge_average(study: Study, held_back: Batch, watch: Stopwatch, world: int) -> float:
    """The loss of the averaged weights, over all ranks; the bands of levels are weighed anew by it."""
    with watch.part("backward"):
        dist.barrier()
    seen, velocity = held_back
    with watch.part("forward"):
        losses = (study.averaged(seen) - velocity).square().mean(dim=1)
        own = {"losses": [float(part.mean()) for part in losses.chunk(BANDS)], "count": len(losses)}
    with watch.part("device"):
        device_wait(study.device_s / 3)
    everyones: list[dict[str, object]] = [{} for _ in range(world)]
    with watch.part("backward"):
        dist.all_gather_object(everyones, own)
    bands = np.mean([one["losses"] for one in everyones], axis=0)
    study.weights = 0.5 / BANDS + 0.5 * bands / bands.sum()
    return float(bands.mean())


class Curve:
    """The losses of the last steps, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._smooth = 1.0

    def record_loss(self, loss: float, norm: float) -> float:
        with self._lock:
            self._smooth += 0.02 * (loss - self._smooth) * min(1.0, 1 / (norm + 1e-6))
        slow["record_loss"]()
        return self._smooth


class Source:
    """Batches of one rank, from its files or from its workers."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self._rows, self._tries, self._rank = args.batch, args.crops // 3, rank
        self._files = LatentFiles(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self.weights = np.full(BANDS, 1 / BANDS)
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})
        self._has_workers = args.workers > 0

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self.noisy(self._files.read_record(1.0), 1.0)

    def noisy(self, record: memoryview, length: float) -> Batch:
        rows = int(self._rows * length)
        rng = np.random.default_rng((self._rank, zlib.crc32(record[:4096])))
        latents = restore(unpack_differences(record, rows * LATENT))
        noise = pair_noise(latents, rng, self._tries)
        return add_noise(latents, noise, draw_levels(rng, rows, self.weights))

    def draw(self, length: float, features: Features, watch: Stopwatch) -> Batch:
        with watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self._files.read_record(length)
        with watch.part("prepare"):
            batch = found if self._has_workers else self.noisy(found, length)
            features.before_forward()
        return batch


def learn(study: Study, batch: Batch, device_s: float, watch: Stopwatch) -> Tensor:
    seen, velocity = batch
    with watch.part("forward"):
        loss = nn.functional.mse_loss(study.model(seen), velocity)
    with watch.part("device"):
        device_wait(device_s)
    with watch.part("backward"):
        loss.backward()
    return loss


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    control = Control(args.dir / f"rank{rank}.control")
    watch = Stopwatch(Recorder(args.dir / f"rank{rank}.steps"))
    features, lengths = features_of(args, rank), Lengths(rank, world)
    source, curve, jitter = Source(args, rank), Curve(features.metrics_thread.lock), random.Random(rank)
    study = new_study(args.width, args.device_ms / 1000, world)
    held_back: Batch | None = None
    for step in range(args.steps) if args.steps else itertools.count():
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, source.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            study = new_study(control.orders["width"], args.device_ms / 1000 * control.orders["device"], world)
        length = lengths.of_step(step)
        source.weights = study.weights
        batch = source.draw(length, features, watch)
        held_back = held_back or batch
        loss = learn(study, batch, study.device_s * length * jitter.uniform(0.98, 1.02), watch)
        with watch.part("optimizer"):
            norm = update(study, step)
        smooth = curve.record_loss(loss.item(), norm)
        if step % JUDGED_EVERY == JUDGED_EVERY - 1:
            judged = judge_average(study, held_back, watch, world)
            if rank == 0:
                print(f"step {step} loss {smooth:.4f} averaged {judged:.4f} norm {norm:.2f}", flush=True)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
