"""Genes in long stretches of a genome: another shape of the lab's job, with the same options and files.

Bases are spelled out, and repeats, minimizers and open reading frames are looked for in plain Python. One sequence runs through all ranks:
each has a section of it, and keys and values of all sections go round in a ring, from neighbour to neighbour, while the model attends to
them; their gradients come back the other way. Sections need not be of one length, so that all say first how long theirs are. The
gradients of the weights go through DDP; every thirtieth step rank 0 hears how much was said right.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BASES, KMER = "ACGT", 5
VOCABULARY = len(BASES) ** KMER + 1
HIDDEN = VOCABULARY - 1  # the token that stands for one that is not shown
QUADS = ["".join(BASES[code >> shift & 3] for shift in (6, 4, 2, 0)) for code in range(256)]
VALUES = {base: value for value, base in enumerate(BASES)}
BASES_PER_EFFORT, ROWS_PER_TOKEN = 60, 0.75
REPEAT = re.compile(r"([ACGT]{1,3})\1{2,}")
MINIMIZER, WINDOW = 9, 8
SCATTER = 0x9E3779B1  # so that the least k-mers are not those with many As
START, STOPS, FEWEST_CODONS = "ATG", ("TAA", "TAG", "TGA"), 4
BETWEEN, CODING, BEGINS, ENDS, REPEATED = range(5)
HIDDEN_SHARE = 0.1
MOTIFS, HEADS = 7, 4  # how many k-mers a filter sees
BEFORE_RING = 0.4  # of the time on the device
RATE, WARM_UP, MOST_NORM = 1e-3, 100, 1.0
HEARD_EVERY = 30

Frame = tuple[int, int]  # begin and end
Batch = tuple[Tensor, Tensor]  # what stands at each place of the section, and of what kind it is


@dataclass
class Stretch:
    """What is known of some bases in a row."""

    bases: str
    repeats: list[tuple[int, int]]
    minimizers: list[int]
    frames: list[Frame]


class Assembly:
    """The contigs on this rank's disk, read past the page cache."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._places = places(folder, block_bytes)

    def read_contig(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        block = os.pread(fd, self._block_bytes, min(offset, size - self._block_bytes))
        slow["read_contig"]()
        return block


def spell_bases(block: bytes, count: int) -> str:
    """Four of them in a byte."""
    bases = "".join([QUADS[code] for code in block[: -(-count // 4)]])
    slow["spell_bases"]()
    return bases


def turn_strand(bases: str, dice: random.Random) -> str:
    """The other strand, read backwards, is as good as this one."""
    if dice.random() < 0.5:
        bases = "".join([BASES[3 - VALUES[base]] for base in reversed(bases)])
    slow["turn_strand"]()
    return bases


def mask_repeats(bases: str) -> list[tuple[int, int]]:
    """Where up to three bases come again at once, three times or more."""
    repeats = [match.span() for match in REPEAT.finditer(bases)]
    slow["mask_repeats"]()
    return repeats


def pick_minimizers(bases: str) -> list[int]:
    """Where the least of so many k-mers in a row begins, by a number that scatters them."""
    found: list[int] = []
    ahead: deque[tuple[int, int]] = deque()  # the k-mers that may yet be the least, least first
    code, most = 0, len(BASES) ** MINIMIZER
    for end, base in enumerate(bases):
        code = (code * len(BASES) + VALUES[base]) % most
        begin = end + 1 - MINIMIZER
        if begin < 0:
            continue
        number = code * SCATTER & 0xFFFFFFFF
        while ahead and ahead[-1][0] >= number:
            ahead.pop()
        ahead.append((number, begin))
        if ahead[0][1] <= begin - WINDOW:
            ahead.popleft()
        if begin >= WINDOW - 1 and (not found or found[-1] != ahead[0][1]):
            found.append(ahead[0][1])
    slow["pick_minimizers"]()
    return found


def find_frames(bases: str) -> list[Frame]:
    """Open reading frames: from a start to the first stop that is in step with it."""
    frames: list[Frame] = []
    for shift in range(3):
        begin = -1
        for at in range(shift, len(bases) - 2, 3):
            codon = bases[at : at + 3]
            if begin < 0 and codon == START:
                begin = at
            elif begin >= 0 and codon in STOPS:
                if at - begin >= 3 * FEWEST_CODONS:
                    frames.append((begin, at + 3))
                begin = -1
    frames.sort()
    slow["find_frames"]()
    return frames


def choose_section(stretch: Stretch, bases: int, dice: random.Random) -> int:
    """Where a section begins: at a minimizer, so that the same place is always cut alike; of three the one with most genes."""
    last = len(stretch.bases) - bases
    begins = [begin for begin in stretch.minimizers if begin <= last] or [0]

    def covered(begin: int) -> int:
        return sum(max(0, min(end, begin + bases) - max(since, begin)) for since, end in stretch.frames)

    begin = max(dice.choices(begins, k=3), key=covered)
    slow["choose_section"]()
    return begin


def annotate(stretch: Stretch) -> bytearray:
    """The kind of each base; where two hold, the later one in this order."""
    kinds = bytearray([BETWEEN]) * len(stretch.bases)
    for begin, end in stretch.repeats:
        kinds[begin:end] = bytes([REPEATED]) * (end - begin)
    for begin, end in stretch.frames:
        kinds[begin:end] = bytes([CODING]) * (end - begin)
    for begin, end in stretch.frames:
        kinds[begin : begin + 3], kinds[end - 3 : end] = bytes([BEGINS]) * 3, bytes([ENDS]) * 3
    slow["annotate"]()
    return kinds


def number_kmers(bases: str, kinds: bytearray, dice: random.Random) -> Batch:
    """Some are hidden; the kind of a k-mer is that of the base in the middle."""
    numbers, wanted = [], []
    for at in range(0, len(bases) - KMER + 1, KMER):
        number = 0
        for base in bases[at : at + KMER]:
            number = number * len(BASES) + VALUES[base]
        numbers.append(HIDDEN if dice.random() < HIDDEN_SHARE else number)
        wanted.append(kinds[at + KMER // 2])
    batch = torch.tensor(numbers), torch.tensor(wanted)
    slow["number_kmers"]()
    return batch


class Sections:
    """What one rank contributes to the sequence of each step, cut by itself or by its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._bases, self._tokens = BASES_PER_EFFORT * args.crops, args.batch / ROWS_PER_TOKEN
        self._assembly = Assembly(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._dice, self._watch = random.Random(rank), watch
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._has_workers = args.workers > 0
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._cut(self._assembly.read_contig(), 1.0)

    def next_section(self, length: float) -> Batch:
        with self._watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self._assembly.read_contig()
        with self._watch.part("prepare"):
            return found if self._has_workers else self._cut(found, length)

    def _cut(self, block: bytes, length: float) -> Batch:
        wanted = KMER * max(2, int(self._tokens * length))
        bases = spell_bases(block, max(int(self._bases * length), wanted))
        bases = turn_strand(bases, self._dice)
        stretch = Stretch(bases, mask_repeats(bases), pick_minimizers(bases), find_frames(bases))
        begin = choose_section(stretch, wanted, self._dice)
        chosen = slice(begin, begin + wanted)
        return number_kmers(bases[chosen], annotate(stretch)[chosen], self._dice)


class Ring:
    """The ranks in a circle; rows go to the next one, gradients to the one before."""

    def __init__(self, rank: int, world: int, watch: Stopwatch) -> None:
        self.rank, self.world, self._watch = rank, world, watch
        self._next, self._before = (rank + 1) % world, (rank - 1) % world
        self._group = dist.new_group()  # neighbours need not agree with DDP on what comes first

    def tell_sizes(self, size: int) -> list[int]:
        """How long the section of each rank is."""
        sizes = torch.zeros(self.world, dtype=torch.int64)
        with self._watch.part("backward"):
            dist.all_gather(list(sizes.split(1)), torch.tensor([size]))
        return sizes.tolist()

    def start_forth(self, rows: Tensor, coming: int) -> Tensor:
        return self._start(rows, coming, self._next, self._before)

    def back(self, rows: Tensor, coming: int) -> Tensor:
        found = self._start(rows, coming, self._before, self._next)
        self.finish()
        return found

    def _start(self, rows: Tensor, coming: int, to: int, source: int) -> Tensor:
        """What is there after `finish`."""
        self._sent, found = rows.contiguous(), rows.new_empty((coming, rows.shape[1]))
        self._works = [dist.isend(self._sent, to, self._group), dist.irecv(found, source, self._group)]
        return found

    def finish(self) -> None:
        with self._watch.part("backward"):
            for work in self._works:
                work.wait()


class Passed(torch.autograd.Function):
    """Rows for the next rank, in exchange for those of the one before, which are there when the ring has finished."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, coming: int, ring: Ring) -> Tensor:
        ctx.gone, ctx.ring = len(rows), ring
        return ring.start_forth(rows, coming)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.ring.back(gradient, ctx.gone), None, None


class RingAttention(nn.Module):
    """Each place of this section looks at all places of all sections, one section after the other."""

    def __init__(self, inner: int, ring: Ring) -> None:
        super().__init__()
        self.asks, self.answers, self.out = (
            nn.Linear(inner, inner),
            nn.Linear(inner, 2 * inner),
            nn.Linear(inner, inner),
        )
        self._ring = ring

    def forward(self, tokens: Tensor, sizes: list[int]) -> Tensor:
        asked = self.asks(tokens).unflatten(1, (HEADS, -1)).transpose(0, 1)
        rows = self.answers(tokens)
        found, weight = torch.zeros_like(asked), asked.new_zeros((*asked.shape[:2], 1))
        most = asked.new_full(weight.shape, -math.inf)
        for hop in range(1, self._ring.world + 1):
            is_last = hop == self._ring.world
            coming = rows if is_last else Passed.apply(rows, sizes[self._ring.rank - hop], self._ring)
            keys, values = rows.unflatten(1, (2, HEADS, -1)).permute(1, 2, 0, 3)
            scores = asked @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
            higher = torch.maximum(most, scores.detach().amax(dim=-1, keepdim=True))
            shares, faded = (scores - higher).exp(), (most - higher).exp()
            found, weight = found * faded + shares @ values, weight * faded + shares.sum(dim=-1, keepdim=True)
            most = higher
            if not is_last:
                self._ring.finish()
            rows = coming
        return self.out((found / weight).transpose(0, 1).flatten(1))


class Annotator(nn.Module):
    """Says of each place what kind it is: by motifs of its own section, then by all sections; `compute` is called in between."""

    def __init__(self, width: int, ring: Ring, compute: Callable[[], None]) -> None:
        super().__init__()
        inner = width // 5 // HEADS * HEADS
        self.kmers, self.motifs = nn.Embedding(VOCABULARY, inner), nn.Conv1d(inner, inner, MOTIFS, padding="same")
        self.before, self.after = nn.LayerNorm(inner), nn.LayerNorm(inner)
        self.attention = RingAttention(inner, ring)
        self.mixed = nn.Sequential(nn.Linear(inner, width), nn.GELU(), nn.Linear(width, inner))
        self.kinds = nn.Linear(inner, REPEATED + 1)
        self._compute = compute

    def forward(self, numbers: Tensor, sizes: list[int]) -> Tensor:
        tokens = self.kmers(numbers)
        tokens = tokens + F.gelu(self.motifs(tokens.T)).T
        self._compute()
        tokens = tokens + self.attention(self.before(tokens), sizes)
        return self.kinds(tokens + self.mixed(self.after(tokens)))


def kind_loss(said: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(said, wanted)


class Losses:
    """Loss and share of what was right, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.latest: deque[tuple[float, float]] = deque(maxlen=HEARD_EVERY)

    def keep_loss(self, loss: Tensor, said: Tensor, wanted: Tensor) -> None:
        right = float((said.argmax(dim=-1) == wanted).float().mean())
        with self._lock:
            self.latest.append((loss.item(), right))
        slow["keep_loss"]()


class Training:
    """The model on this rank's section, and what changes it; begins anew with another width."""

    def __init__(self, width: int, device_s: float, ring: Ring, watch: Stopwatch) -> None:
        self._device_s, self._ring, self._watch = device_s, ring, watch
        self._jitter, self._length = random.Random(ring.rank), 1.0
        self._model = DistributedDataParallel(Annotator(width, ring, lambda: self._compute_on_device(BEFORE_RING)))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=RATE)
        self._rate = torch.optim.lr_scheduler.LinearLR(self._optimizer, start_factor=0.05, total_iters=WARM_UP)

    def _compute_on_device(self, share: float) -> None:
        with self._watch.part("device"):
            device_wait(self._device_s * share * self._length * self._jitter.uniform(0.98, 1.02))

    def learn(self, section: Batch, length: float) -> tuple[Tensor, Tensor]:
        """The loss, and what was said."""
        numbers, wanted = section
        self._length = length
        sizes = self._ring.tell_sizes(len(numbers))
        with self._watch.part("forward"):
            said = self._model(numbers, sizes)
            loss = kind_loss(said, wanted)
        self._compute_on_device(1 - BEFORE_RING)
        with self._watch.part("backward"):
            loss.backward()
        with self._watch.part("optimizer"):
            nn.utils.clip_grad_norm_(self._model.parameters(), MOST_NORM)
            self._optimizer.step()
            self._rate.step()
            self._optimizer.zero_grad()
        return loss.detach(), said.detach()


def tell_rank_0(losses: Losses, rank: int, world: int, step: int, watch: Stopwatch) -> None:
    figures = torch.tensor(list(losses.latest)).mean(dim=0)
    with watch.part("backward"):
        dist.reduce(figures, dst=0)
    if rank == 0:
        loss, right = (figures / world).tolist()
        print(f"{step + 1} sequences: loss {loss:.4f}, {right:.1%} right", flush=True)


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, sections = features_of(args, rank), Lengths(rank, world), Sections(args, rank, watch)
    losses, ring = Losses(features.metrics_thread.lock), Ring(rank, world, watch)
    training = Training(args.width, args.device_ms / 1000, ring, watch)
    for step in range(args.steps) if args.steps else itertools.count():
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, sections.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            device_s = args.device_ms / 1000 * control.orders["device"]
            training = Training(control.orders["width"], device_s, ring, watch)
        length = lengths.of_step(step)
        section = sections.next_section(length)
        with watch.part("prepare"):
            features.before_forward()
        loss, said = training.learn(section, length)
        losses.keep_loss(loss, said, section[1])
        if step % HEARD_EVERY == HEARD_EVERY - 1:
            tell_rank_0(losses, rank, world, step, watch)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
