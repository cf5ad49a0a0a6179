"""Music for four voices, note by note: another shape of the lab's job, with the same options and files.

Keys that were struck become notes, bars, chords and tokens, in plain Python, and a small transformer foretells each token. Its large
weights are square matrices in one stack, and each rank owns some of them: their gradients are summed at the owner only, which makes an
orthogonal step of its momentum (Muon) and sends the new matrices to all; a step has as many roots as ranks. What is small is summed in one
row and updated by all alike. Every eighth step rank 0 gathers how well each kind of token is foretold, and says how much each is to count.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import struct
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
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

EVENT, EVENTS_PER_EFFORT = struct.Struct("4B"), 20
VOICES, LOWEST, HIGHEST, LEAPS = 4, 36, 95, 7
QUARTER, BAR = 24, 96  # ticks
GRIDS, SHORTEST = (6, 8), 3  # sixteenths, and triplets of eighths
SECTION = 8 * BAR  # in which one key is looked for
# After Krumhansl: how well each degree fits.
MAJOR = (6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88)
MINOR = (6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17)
CHORDS = ((0, 4, 7), (0, 3, 7), (0, 4, 7, 10), (0, 3, 6))  # steps above the root
SHAPES = [sum(1 << (root + step) % 12 for step in steps) for steps in CHORDS for root in range(12)]
LENGTHS, FORCES = (6, 8, 12, 16, 24, 32, 48, 72, 96), 8

# How many tokens there are of each kind; the same order below.
KINDS = {"bar": 1, "place": BAR // 2, "chord": len(SHAPES), "pitch": HIGHEST + 13 - LOWEST}
KINDS |= {"length": len(LENGTHS), "force": FORCES}
AT = dict(zip(KINDS, itertools.accumulate(KINDS.values(), initial=0), strict=False))
VOCABULARY = sum(KINDS.values())
KIND_OF = torch.tensor([number for number, count in enumerate(KINDS.values()) for _ in range(count)])

CONTEXT, LONGEST, ROWS_PER_WINDOW = 32, 128, 20
BLOCKS, HEADS = 2, 4
PARTS = (3, 1, 4, 4)  # matrices of a block: for attention, out of it, into what is hidden, out of that
IN_FORWARD = 0.35  # of the time on the device
RATE, SMALL_RATE, MOMENTUM, DECAY, WARM_UP = 0.01, 2e-3, 0.95, 0.01, 150
NEWTON_SCHULZ, NEWTON_STEPS = (3.4445, -4.7750, 2.0315), 5
WEIGHED_EVERY, TESTED_EVERY, PRINTED_EVERY = 8, 48, 24

Batch = tuple[Tensor, Tensor]  # what is heard, and what comes next


class Note(NamedTuple):
    tick: int
    voice: int
    pitch: int
    force: int  # nothing: the key is let go
    length: int = 0


def decode_keys(take: bytes, count: int) -> list[Note]:
    """Each with the ticks since the one before; a voice goes on from where it is, by a leap at most."""
    tick, pitches, keys = 0, [LOWEST + 12 * voice + 12 for voice in range(VOICES)], []
    for wait, chosen, leap, force in EVENT.iter_unpack(take[: EVENT.size * min(count, len(take) // EVENT.size)]):
        tick += wait % 12
        voice = chosen % VOICES
        pitches[voice] = min(max(pitches[voice] + leap % (2 * LEAPS + 1) - LEAPS, LOWEST), HIGHEST)
        keys.append(Note(tick, voice, pitches[voice], force if force > 31 else 0))
    slow["decode_keys"]()
    return keys


def pair_notes(keys: list[Note]) -> list[Note]:
    """A voice sounds until its next key, or until it is let go."""
    sounding: dict[int, Note] = {}
    notes = []
    for key in keys:
        before = sounding.pop(key.voice, None)
        if before and key.tick - before.tick >= SHORTEST:
            notes.append(before._replace(length=key.tick - before.tick))
        if key.force:
            sounding[key.voice] = key
    notes.sort()
    slow["pair_notes"]()
    return notes


def quantise(notes: list[Note]) -> list[Note]:
    """Each quarter in sixteenths or in triplets, whichever is less away from what was played."""
    snapped = []
    for quarter, played in itertools.groupby(notes, key=lambda note: note.tick // QUARTER):
        together = list(played)
        beats = [note.tick % QUARTER for note in together]
        away = {grid: sum(abs(beat - round(beat / grid) * grid) for beat in beats) for grid in GRIDS}
        grid = min(away, key=away.__getitem__)
        for note in together:
            tick = quarter * QUARTER + round(note.tick % QUARTER / grid) * grid
            snapped.append(note._replace(tick=tick, length=max(grid, round(note.length / grid) * grid)))
    slow["quantise"]()
    return snapped


def find_tonics(notes: list[Note]) -> list[int]:
    """Of each section the degree on which it rests, by how its pitches are spread."""
    sections = notes[-1].tick // SECTION + 1 if notes else 0
    heard = np.zeros((sections, 12))
    for note in notes:
        heard[note.tick // SECTION, note.pitch % 12] += note.length
    heard -= heard.mean(axis=1, keepdims=True)
    profiles = np.array([np.roll(profile, degree) for profile in (MAJOR, MINOR) for degree in range(12)])
    profiles -= profiles.mean(axis=1, keepdims=True)
    fits = heard @ (profiles / np.linalg.norm(profiles, axis=1, keepdims=True)).T
    tonics = (fits.argmax(axis=1) % 12).tolist()
    slow["find_tonics"]()
    return tonics


def transpose(notes: list[Note], tonics: list[int], dice: random.Random) -> list[Note]:
    """All sections on one degree, which is drawn."""
    wanted = dice.randrange(12)
    shifts = [(wanted - tonic + 5) % 12 - 5 for tonic in tonics]
    moved = [note._replace(pitch=max(LOWEST, note.pitch + shifts[note.tick // SECTION])) for note in notes]
    slow["transpose"]()
    return moved


def name_chords(notes: list[Note]) -> dict[int, int]:
    """By quarter, the chord that has most of what sounds and least beside it; of several the first."""
    sounding: dict[int, int] = {}
    for note in notes:
        for quarter in range(note.tick // QUARTER, (note.tick + note.length - 1) // QUARTER + 1):
            sounding[quarter] = sounding.get(quarter, 0) | 1 << note.pitch % 12
    chords = {}
    for quarter, heard in sounding.items():
        scores = [2 * (heard & shape).bit_count() - (heard ^ shape).bit_count() for shape in SHAPES]
        chords[quarter] = scores.index(max(scores))
    slow["name_chords"]()
    return chords


def write_tokens(notes: list[Note], chords: dict[int, int]) -> list[int]:
    """Bars, and in them places and chords; of each note its pitch, length and force."""
    tokens, bar, quarter, place = [], -1, -1, -1
    for note in notes:
        if note.tick // BAR != bar:
            bar, place = note.tick // BAR, -1
            tokens.append(AT["bar"])
        if note.tick % BAR != place:
            place = note.tick % BAR
            tokens.append(AT["place"] + place // 2)
        if note.tick // QUARTER != quarter:
            quarter = note.tick // QUARTER
            tokens.append(AT["chord"] + chords[quarter])
        length = bisect_right(LENGTHS, note.length) - 1
        tokens += (AT["pitch"] + note.pitch - LOWEST, AT["length"] + length, AT["force"] + note.force * FORCES // 256)
    slow["write_tokens"]()
    return tokens


def cut_excerpts(tokens: list[int], count: int, length: int, dice: random.Random) -> Batch:
    """Each begins where a bar does, if that leaves enough."""
    while len(tokens) <= length:
        tokens = (tokens or [AT["bar"]]) * 2
    last = len(tokens) - length - 1
    begins = [at for at, token in enumerate(tokens[: last + 1]) if token == AT["bar"]] or [last]
    excerpts = torch.tensor([tokens[at : at + length + 1] for at in dice.choices(begins, k=count)])
    batch = excerpts[:, :-1].contiguous(), excerpts[:, 1:].contiguous()
    slow["cut_excerpts"]()
    return batch


class Repertoire:
    """Excerpts of what was played on this rank's instruments, worked out by the rank itself or by its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._keys, self._count = EVENTS_PER_EFFORT * args.crops, max(1, args.batch // ROWS_PER_WINDOW)
        self._take_bytes, self._watch, self._dice = args.sample_kib * 1024, watch, random.Random(rank)
        self._places = places(args.data / f"rank{rank}", self._take_bytes)
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._has_workers = args.workers > 0
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def read_take(self) -> bytes:
        """The next one, read past the page cache."""
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        take = os.pread(fd, self._take_bytes, min(offset, size - self._take_bytes))
        slow["read_take"]()
        return take

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._arrange(self.read_take(), 1.0)

    def next_excerpts(self, length: float) -> Batch:
        with self._watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self.read_take()
        with self._watch.part("prepare"):
            return found if self._has_workers else self._arrange(found, length)

    def _arrange(self, take: bytes, length: float) -> Batch:
        notes = quantise(pair_notes(decode_keys(take, int(self._keys * length))))
        notes = transpose(notes, find_tonics(notes), self._dice)
        tokens = write_tokens(notes, name_chords(notes))
        return cut_excerpts(tokens, self._count, min(LONGEST, round(CONTEXT * length)), self._dice)


class Composer(nn.Module):
    """A transformer that says what comes next; `matrices` are all its square weights, block by block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width // 4
        self.tokens, self.places = nn.Embedding(VOCABULARY, inner), nn.Embedding(LONGEST, inner)
        nn.init.normal_(self.tokens.weight, std=inner**-0.5)
        nn.init.normal_(self.places.weight, std=inner**-0.5)
        self.norms = nn.ModuleList(nn.LayerNorm(inner) for _ in range(2 * BLOCKS + 1))
        self.matrices = nn.Parameter(torch.empty(BLOCKS * sum(PARTS), inner, inner))
        for matrix in self.matrices.data:
            nn.init.orthogonal_(matrix)

    def small(self) -> list[nn.Parameter]:
        return [one for one in self.parameters() if one is not self.matrices]

    def forward(self, heard: Tensor) -> Tensor:
        seen = self.tokens(heard) + self.places.weight[: heard.shape[1]]
        norms, matrices = iter(self.norms), iter(self.matrices.split(PARTS * BLOCKS))
        for attended, out, hidden, back in zip(*[matrices] * len(PARTS), strict=True):
            heads = F.linear(next(norms)(seen), attended.flatten(0, 1)).unflatten(-1, (3, HEADS, -1))
            found = F.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), is_causal=True)
            seen = seen + F.linear(found.transpose(1, 2).flatten(2), out[0])
            known = F.relu(F.linear(next(norms)(seen), hidden.flatten(0, 1))).square()
            seen = seen + F.linear(known, back.transpose(0, 1).flatten(1))
        return F.linear(next(norms)(seen), self.tokens.weight)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Nearly the nearest matrices that only turn, by a few steps of Newton and Schulz."""
    first, third, fifth = NEWTON_SCHULZ
    near = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for _ in range(NEWTON_STEPS):
        square = near @ near.mT
        near = first * near + torch.baddbmm(square, square, square, beta=third, alpha=fifth) @ near
    slow["orthogonalise"]()
    return near


class OwnedMuon:
    """The matrices by orthogonal steps of their owners, everything small by AdamW on all ranks alike."""

    def __init__(self, model: Composer, rank: int, world: int, watch: Stopwatch) -> None:
        self._rank, self._world, self._watch = rank, world, watch
        self._matrices, self._small = model.matrices, model.small()
        for one in model.parameters():
            dist.broadcast(one.data, src=0)
        self._momentum = torch.zeros_like(self._matrices.data.tensor_split(world)[rank])
        self._everyones = torch.empty(world, *self._momentum.shape)  # gradients of what is owned here
        self._adam = torch.optim.AdamW(self._small, lr=SMALL_RATE, weight_decay=DECAY)
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self._steps += 1
        warmth = min(1.0, self._steps / WARM_UP)
        parts = self._matrices.grad.tensor_split(self._world)
        small = parameters_to_vector([one.grad for one in self._small]) / self._world
        own = list(self._everyones)
        to_owners = [
            dist.gather(part, own if owner == self._rank else None, dst=owner, async_op=True)
            for owner, part in enumerate(parts)
        ]
        with self._watch.part("backward"):
            dist.all_reduce(small)
            to_owners[self._rank].wait()
        owned = self._matrices.data.tensor_split(self._world)
        gradient = self._everyones.mean(dim=0)
        self._momentum.lerp_(gradient, 1 - MOMENTUM)
        turn = orthogonalise(gradient.lerp(self._momentum, MOMENTUM))
        owned[self._rank].mul_(1 - DECAY * RATE * warmth).add_(turn, alpha=-RATE * warmth)
        to_all = [dist.broadcast(part, src=owner, async_op=True) for owner, part in enumerate(owned)]
        vector_to_parameters(small, [one.grad for one in self._small])
        self._adam.param_groups[0]["lr"] = SMALL_RATE * warmth
        self._adam.step()
        with self._watch.part("backward"):
            for work in (*to_owners, *to_all):
                work.wait()
        for one in (self._matrices, *self._small):
            one.grad = None


class Balance:
    """How much each kind of token counts: rank 0 gathers how far off all are, and says so. A thread that uploads shares the lock."""

    def __init__(self, lock: threading.Lock, rank: int, world: int, watch: Stopwatch) -> None:
        self._lock, self._rank, self._world, self._watch = lock, rank, world, watch
        self.weights = torch.ones(len(KINDS))
        self._sums = torch.zeros(2, len(KINDS))
        self._latest: deque[float] = deque(maxlen=PRINTED_EVERY)

    def jot_losses(self, losses: Tensor, kinds: Tensor) -> None:
        with self._lock:
            self._sums.index_add_(1, kinds, torch.stack((losses, torch.ones_like(losses))))
            self._latest.append(float(losses.mean()))
        slow["jot_losses"]()

    def weigh(self) -> None:
        everyones = [torch.empty_like(self._sums) for _ in range(self._world)] if self._rank == 0 else None
        with self._watch.part("backward"):
            dist.gather(self._sums, everyones, dst=0)
        if everyones is not None:
            total, count = torch.stack(everyones).sum(dim=0)
            off = (total / count.clamp(min=1)).clamp(min=0.05).sqrt()
            self.weights = off / off.mean()
        with self._watch.part("backward"):
            dist.broadcast(self.weights, src=0)
        self._sums = torch.zeros_like(self._sums)

    def told(self) -> str:
        hardest = list(KINDS)[int(self.weights.argmax())]
        return f"loss {sum(self._latest) / len(self._latest):.3f}, {hardest} counts most"


class Studio:
    """The composer at work; begins anew with another width."""

    def __init__(self, width: int, device_s: float, rank: int, world: int, watch: Stopwatch) -> None:
        self._device_s, self._watch, self._jitter = device_s, watch, random.Random(rank)
        self._composer = Composer(width)
        self._muon = OwnedMuon(self._composer, rank, world, watch)

    def _compute_on_device(self, share: float, length: float) -> None:
        with self._watch.part("device"):
            device_wait(self._device_s * share * length * self._jitter.uniform(0.98, 1.02))

    def rehearse(self, batch: Batch, weights: Tensor, length: float) -> tuple[Tensor, Tensor]:
        """The loss of each token, and its kind."""
        heard, following = batch
        kinds = KIND_OF[following.flatten()]
        with self._watch.part("forward"):
            losses = F.cross_entropy(self._composer(heard).flatten(0, 1), following.flatten(), reduction="none")
        self._compute_on_device(IN_FORWARD, length)
        with self._watch.part("forward"):  # no rank waits for another here
            (losses * weights[kinds]).mean().backward()
        self._compute_on_device(1 - IN_FORWARD, length)
        with self._watch.part("optimizer"):
            self._muon.step()
        return losses.detach(), kinds

    @torch.no_grad()
    def test(self, batch: Batch) -> float:
        """Between how many tokens all ranks together hesitate."""
        with self._watch.part("forward"):
            loss = F.cross_entropy(self._composer(batch[0]).flatten(0, 1), batch[1].flatten())
        with self._watch.part("backward"):
            dist.all_reduce(loss)
        return float((loss / dist.get_world_size()).exp())


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, repertoire = features_of(args, rank), Lengths(rank, world), Repertoire(args, rank, watch)
    balance = Balance(features.metrics_thread.lock, rank, world, watch)
    held_back = repertoire.next_excerpts(1.0)
    studio = Studio(args.width, args.device_ms / 1000, rank, world, watch)
    steps: Iterator[int] = iter(range(args.steps)) if args.steps else itertools.count()
    for step in steps:
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, repertoire.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            device_s = args.device_ms / 1000 * control.orders["device"]
            studio = Studio(control.orders["width"], device_s, rank, world, watch)
        length = lengths.of_step(step)
        batch = repertoire.next_excerpts(length)
        with watch.part("prepare"):
            features.before_forward()
        balance.jot_losses(*studio.rehearse(batch, balance.weights, length))
        if step % WEIGHED_EVERY == WEIGHED_EVERY - 1:
            balance.weigh()
        if rank == 0 and step % PRINTED_EVERY == PRINTED_EVERY - 1:
            print(f"take {step + 1}: {balance.told()}", flush=True)
        if step % TESTED_EVERY == TESTED_EVERY - 1:
            left = studio.test(held_back)
            if rank == 0:
                print(f"take {step + 1}: one of {left:.1f} tokens", flush=True)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
