"""A small speech recogniser: another shape of the lab's job, with the same options and files.

Recordings are cut into utterances of many lengths, which are padded in two micro-batches; their gradients add up on the rank, are summed
over the ranks in buckets after the second, and clipped by a norm of which each rank computes a part. Every twentieth step all average
their losses, and after an epoch rank 0 sets the learning rate for all.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import threading
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn

HOP, WINDOW, MELS = 80, 256, 40  # samples at 8 kHz: a frame each 10 ms
SHORTEST, LONGEST, MULTIPLE = 16, 48, 8  # frames of an utterance, and what it is padded to
FRAMES_PER_ROW = 4
LETTERS, FRAMES_PER_LETTER = 32, 8
MICRO_BATCHES = 2
BUCKET_BYTES = 512 << 10
RATE, MOST_NORM = 1e-3, 5.0
LOGGED_EVERY, EPOCH = 20, 250

# From mu-law, as telephones send it, to amplitudes.
_CODES = np.arange(256) / 127.5 - 1
AMPLITUDES = (np.sign(_CODES) * (256.0 ** np.abs(_CODES) - 1) / 255).astype(np.float32)


class Recordings:
    """The recordings of one rank, read past the page cache."""

    def __init__(self, folder: Path, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._places = places(folder, chunk_bytes)

    def read_chunk(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        chunk = os.pread(fd, self._chunk_bytes, min(offset, size - self._chunk_bytes))
        slow["read_chunk"]()
        return chunk


def mel_filters() -> np.ndarray:
    """Triangles over the bins of the spectrum, as wide as the ear's: bins × MELS."""
    top = 2595 * math.log10(1 + 4000 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1) / 4000 * (WINDOW // 2)
    bins = np.arange(WINDOW // 2 + 1)[:, None]
    rising, falling = (bins - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - bins) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def tapers(count: int) -> np.ndarray:
    """Sine tapers: the more there are, the smoother the spectrum."""
    places_of = np.arange(1, WINDOW + 1) / (WINDOW + 1)
    return np.stack([np.sin(math.pi * number * places_of) for number in range(1, count + 1)]).astype(np.float32)


class FrontEnd:
    """From bytes to padded utterances; `effort` sets how many spectra are averaged for each frame."""

    def __init__(self, effort: int, seed: int) -> None:
        self._filters = mel_filters()
        self._tapers = tapers(max(1, effort // 6))
        self._rng = random.Random(seed)

    def cut(self, chunk: bytes, frames: int) -> list[np.ndarray]:
        """Utterances that have so many frames together, the shortest first."""
        left, lengths = frames, []
        while left >= 2 * SHORTEST:
            lengths.append(min(self._rng.randint(SHORTEST, LONGEST), left - SHORTEST))
            left -= lengths[-1]
        ends = list(itertools.accumulate([*lengths, left]))
        samples = np.resize(np.frombuffer(chunk, dtype=np.uint8), frames * HOP + WINDOW)
        slow["cut"]()
        cuts = [samples[begin * HOP : end * HOP + WINDOW - HOP] for begin, end in itertools.pairwise([0, *ends])]
        return sorted(cuts, key=len)

    def spectra(self, utterances: list[np.ndarray]) -> list[np.ndarray]:
        found = []
        for utterance in utterances:
            framed = np.lib.stride_tricks.sliding_window_view(AMPLITUDES[utterance], WINDOW)[::HOP]
            power = np.zeros((len(framed), WINDOW // 2 + 1), dtype=np.float32)
            for taper in self._tapers:
                power += np.abs(np.fft.rfft(framed * taper)) ** 2
            found.append(np.log(power @ self._filters + 1e-6))
        slow["spectra"]()
        return found

    def mask_bands(self, features: list[np.ndarray]) -> list[np.ndarray]:
        """Normalised, without a band of pitches and a span of time, so that the model relies on neither."""
        masked = []
        for one in features:
            normal = (one - one.mean(0)) / (one.std(0) + 1e-3)
            pitch, moment = self._rng.randrange(MELS - 6), self._rng.randrange(len(one) - 4)
            normal[:, pitch : pitch + 6] = 0
            normal[moment : moment + 4] = 0
            masked.append(normal)
        slow["mask_bands"]()
        return masked


def transcripts(utterances: list[np.ndarray], features: list[np.ndarray]) -> Tensor:
    """A row for each utterance: its frames, its letters' number, its letters."""
    found = torch.zeros(len(utterances), 2 + LONGEST // FRAMES_PER_LETTER, dtype=torch.int64)
    for row, samples, frames in zip(found, utterances, features, strict=True):
        count = len(frames) // FRAMES_PER_LETTER
        letters = samples[: count * HOP : HOP] % (LETTERS - 1) + 1
        row[:2] = torch.tensor([len(frames), count])
        row[2 : 2 + count] = torch.from_numpy(letters.astype(np.int64))
    slow["transcripts"]()
    return found


def pad_batch(features: list[np.ndarray]) -> Tensor:
    longest = -(-max(map(len, features)) // MULTIPLE) * MULTIPLE  # few shapes, so that kernels are found again
    padded = torch.zeros(len(features), longest, MELS)
    for row, one in zip(padded, features, strict=True):
        row[: len(one)] = torch.from_numpy(one)
    slow["pad_batch"]()
    return padded


class Recogniser(nn.Module):
    """Letters for every fourth frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sounds = nn.Conv1d(MELS, width // 2, 5, stride=2, padding=2)
        self.syllables = nn.Conv1d(width // 2, width // 2, 3, stride=2, padding=1)
        self.order = nn.GRU(width // 2, width // 6, batch_first=True)
        self.letters = nn.Sequential(nn.Linear(width // 6, width), nn.ReLU(), nn.Linear(width, LETTERS))

    def forward(self, padded: Tensor) -> Tensor:
        sounds = F.relu(self.sounds(padded.transpose(1, 2)))
        syllables = F.relu(self.syllables(sounds)).transpose(1, 2)
        return F.log_softmax(self.letters(self.order(syllables)[0]), dim=-1)


def ctc_loss(scores: Tensor, targets: Tensor) -> Tensor:
    frames, counts = (targets[:, 0] + 3) // 4, targets[:, 1]
    return F.ctc_loss(scores.transpose(0, 1), targets[:, 2:], frames, counts, zero_infinity=True)


class Gradients:
    """The gradients of a model, exchanged in buckets, those of the last layers first."""

    def __init__(self, model: nn.Module, rank: int, world: int) -> None:
        self._parameters = list(model.parameters())
        self._rank, self._world = rank, world
        self._buckets: list[list[nn.Parameter]] = [[]]
        for one in reversed(self._parameters):
            if sum(other.nbytes for other in self._buckets[-1]) + one.nbytes > BUCKET_BYTES and self._buckets[-1]:
                self._buckets.append([])
            self._buckets[-1].append(one)

    @torch.no_grad()
    def average(self) -> None:
        flats = [torch.cat([one.grad.flatten() for one in bucket]) for bucket in self._buckets]
        works = [dist.all_reduce(flat, async_op=True) for flat in flats]
        for bucket, flat, work in zip(self._buckets, flats, works, strict=True):
            work.wait()
            parts = flat.div_(self._world * MICRO_BATCHES).split([one.numel() for one in bucket])
            for one, part in zip(bucket, parts, strict=True):
                one.grad.copy_(part.view_as(one))

    def norm(self) -> float:
        """Of all gradients; every rank takes its share of the parameters."""
        squares = torch.zeros(1)
        for one in self._parameters[self._rank :: self._world]:
            squares += one.grad.square().sum()
        dist.all_reduce(squares)
        return math.sqrt(float(squares))

    def clip(self, norm: float) -> None:
        if norm > MOST_NORM:
            for one in self._parameters:
                one.grad.mul_(MOST_NORM / norm)


class Log:
    """The losses since the last line, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._losses: list[float] = []

    def add_loss(self, loss: float) -> None:
        with self._lock:
            self._losses.append(loss)
        slow["add_loss"]()

    def mean(self) -> float:
        """Over all ranks, since it was asked the last time."""
        with self._lock:
            found, self._losses = torch.tensor([sum(self._losses), len(self._losses)]), []
        dist.all_reduce(found)
        return float(found[0] / found[1])


class Batches:
    """Two micro-batches in one, padded; made by the rank itself, or by its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._workers, self._frames, self._watch = args.workers, FRAMES_PER_ROW * args.batch, watch
        self._recordings = Recordings(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._front_end = FrontEnd(args.crops, rank)
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def next_one(self, length: float) -> tuple[Tensor, Tensor]:
        with self._watch.part("load"):
            if self._workers:
                return self.loader.next_batch()
            chunk = self._recordings.read_chunk()
        with self._watch.part("prepare"):
            return self._prepare(chunk, length)

    def _in_worker(self, number: int) -> tuple[Tensor, Tensor]:
        self._its_control.poll(number)
        return self._prepare(self._recordings.read_chunk(), 1.0)

    def _prepare(self, chunk: bytes, length: float) -> tuple[Tensor, Tensor]:
        utterances = self._front_end.cut(chunk, int(self._frames * length))
        spectra = self._front_end.spectra(utterances)
        return pad_batch(self._front_end.mask_bands(spectra)), transcripts(utterances, spectra)


def build(width: int, rank: int, world: int) -> tuple[Recogniser, Gradients, torch.optim.Optimizer]:
    model = Recogniser(width)
    for one in model.parameters():
        dist.broadcast(one.data, 0)
    return model, Gradients(model, rank, world), torch.optim.Adam(model.parameters(), lr=RATE)


def set_rate(optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """As rank 0 says."""
    rate = torch.tensor([RATE / (1 + epoch)])
    dist.broadcast(rate, 0)
    for group in optimizer.param_groups:
        group["lr"] = rate.item()


def learn(model: Recogniser, padded: Tensor, targets: Tensor, device_s: float, watch: Stopwatch) -> float:
    """One micro-batch: its gradients are added to those that are there."""
    with watch.part("forward"):
        longest = -(-int(targets[:, 0].max()) // MULTIPLE) * MULTIPLE
        loss = ctc_loss(model(padded[:, :longest]), targets)
    with watch.part("device"):
        device_wait(device_s)
    with watch.part("backward"):
        loss.backward()
    return loss.item() / MICRO_BATCHES


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    control = Control(args.dir / f"rank{rank}.control")
    watch = Stopwatch(Recorder(args.dir / f"rank{rank}.steps"))
    features, lengths, batches = features_of(args, rank), Lengths(rank, world), Batches(args, rank, watch)
    log, jitter = Log(features.metrics_thread.lock), random.Random(rank)
    model, gradients, optimizer = build(args.width, rank, world)
    device_s = args.device_ms / 1000 / MICRO_BATCHES
    for epoch in itertools.count():
        set_rate(optimizer, epoch)
        for step in range(epoch * EPOCH, (epoch + 1) * EPOCH):
            if step == args.steps > 0:
                return
            watch.begin()
            if control.poll(step):
                for part in (features, lengths, batches.loader):
                    part.follow(control.orders)
            if step == control.orders.get("at"):
                model, gradients, optimizer = build(control.orders["width"], rank, world)
                device_s = args.device_ms / 1000 / MICRO_BATCHES * control.orders["device"]
            length, losses = lengths.of_step(step), []
            padded, targets = batches.next_one(length)
            with watch.part("prepare"):
                features.before_forward()
            for micro_batch in zip(padded.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True):
                losses.append(learn(model, *micro_batch, device_s * length * jitter.uniform(0.98, 1.02), watch))
            with watch.part("backward"):
                gradients.average()
                norm = gradients.norm()
            with watch.part("optimizer"):
                gradients.clip(norm)
                optimizer.step()
                optimizer.zero_grad()
            log.add_loss(sum(losses))
            if step % LOGGED_EVERY == LOGGED_EVERY - 1:
                with watch.part("backward"):
                    mean = log.mean()
                if rank == 0:
                    print(f"epoch {epoch} step {step} loss {mean:.4f} norm {norm:.2f}", flush=True)
            features.after_step(step)
            watch.end(step)


if __name__ == "__main__":
    run(train)
