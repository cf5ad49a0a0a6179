"""Words of system logs, by experts that are spread over the ranks: another shape of the lab's job, with the same options and files.

Lines are cleaned with regular expressions and cut into tokens by merging pairs, in Python. In the middle of the model each token goes to
the rank whose expert it needs and comes back, in the forward pass and in the backward pass. No gradient of the rest is summed: every
rank takes its own step, and then all average their weights. An engine tells its handlers how far a step is; one of
them evens out how many tokens go to each expert.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
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
from torch.distributed.algorithms.model_averaging.utils import average_parameters

LETTERS_PER_EFFORT = 65
LENGTH, ROWS_PER_WINDOW = 32, 16
MERGES, LEARNED_FROM = 120, 12_000
HIDDEN_SHARE, KEPT = 0.2, -100  # of the tokens that are to be said; what cross_entropy does not ask for
HEADS = 4
BEFORE_EXPERTS = 0.4  # of the time on the device
RATE, MOST_NORM = 2e-3, 1.0
EVENED_EVERY, EVENED_BY = 20, 0.02
JUDGED_EVERY, SHOWN_EVERY = 60, 50

# What a byte of the log stands for: frequent letters more often, blanks, digits, and what stands between words.
_LETTERS = "eeeeetttaaaooiinnsshhrrddllucmfwygpbvk"
SYMBOLS = bytes(
    ord((_LETTERS * 4 + " " * 38 + "0123456789" * 3 + "./:=-[]_" + "\n\n\n\n")[code % 232]) for code in range(256)
)
STAMP, NUMBER, PATHLIKE = re.compile(r"\d+[:.]\d+"), re.compile(r"\d+"), re.compile(r"\w*(?:/\w+)+")
WORD = re.compile(r"<\w+>|[a-z]+|[^\sa-z]")
Batch = tuple[Tensor, Tensor]
Word = tuple[str, ...]


class JournalFiles:
    """The logs of one rank's machines, read past the page cache."""

    def __init__(self, folder: Path, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._places = places(folder, chunk_bytes)

    def read_journal(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        chunk = os.pread(fd, self._chunk_bytes, min(offset, size - self._chunk_bytes))
        slow["read_journal"]()
        return chunk


def split_lines(chunk: bytes, letters: int) -> list[str]:
    lines = chunk[:letters].translate(SYMBOLS).decode("ascii").splitlines()
    found = [line.strip() for line in lines if len(line) > 3]
    slow["split_lines"]()
    return found


def mask_variables(lines: list[str]) -> list[str]:
    """What differs from event to event of one kind is replaced by what it is."""
    masked = []
    for line in lines:
        timed = STAMP.sub(" <time> ", PATHLIKE.sub(" <path> ", line))
        masked.append(NUMBER.sub(" <number> ", timed))
    slow["mask_variables"]()
    return masked


def split_words(lines: list[str]) -> list[str]:
    words = [word for line in lines for word in WORD.findall(line)]
    slow["split_words"]()
    return words


def joined(word: Word, pair: tuple[str, str]) -> Word:
    """The word with each occurrence of the pair as one piece."""
    pieces, at = [], 0
    while at < len(word):
        if word[at : at + 2] == pair:
            pieces.append(word[at] + word[at + 1])
            at += 2
        else:
            pieces.append(word[at])
            at += 1
    return tuple(pieces)


class PairEncoding:
    """Pieces of words, found by merging the most frequent pair of neighbours again and again."""

    def __init__(self, words: list[str]) -> None:
        counts = Counter(tuple(word) if word[0] != "<" else (word,) for word in words)
        self.ranks: dict[tuple[str, str], int] = {}
        for rank in range(MERGES):
            pairs: Counter[tuple[str, str]] = Counter()
            for word, count in counts.items():
                for pair in itertools.pairwise(word):
                    pairs[pair] += count
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.ranks[best] = rank
            counts = Counter({joined(word, best): count for word, count in counts.items()})
        alphabet = sorted({chr(code) for code in SYMBOLS} | {"<path>", "<time>", "<number>"})
        pieces = ["<hidden>", *alphabet, *("".join(pair) for pair in self.ranks)]
        self.numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}

    def __len__(self) -> int:
        return len(self.numbers)

    def _pieces_of(self, word: str) -> Word:
        pieces: Word = tuple(word) if word[0] != "<" else (word,)
        while len(pieces) > 1:
            best = min(itertools.pairwise(pieces), key=lambda pair: self.ranks.get(pair, MERGES))
            if best not in self.ranks:
                break
            pieces = joined(pieces, best)
        return pieces

    def merge_pairs(self, words: list[str]) -> list[int]:
        known: dict[str, list[int]] = {}  # of this batch only: logs have ever new words
        tokens = []
        for word in words:
            if word not in known:
                known[word] = [self.numbers.get(piece, 0) for piece in self._pieces_of(word)]
            tokens += known[word]
        slow["merge_pairs"]()
        return tokens


def pack_windows(tokens: list[int], count: int, dice: random.Random) -> Tensor:
    """Windows that begin anywhere."""
    begins = [dice.randrange(len(tokens) - LENGTH) for _ in range(count)]
    windows = torch.tensor([tokens[begin : begin + LENGTH] for begin in begins])
    slow["pack_windows"]()
    return windows


def hide_tokens(windows: Tensor) -> Batch:
    """(windows with gaps, what was there)."""
    hidden = torch.rand(windows.shape) < HIDDEN_SHARE
    hidden[:, 0] = True  # never nothing to say
    batch = windows.masked_fill(hidden, 0), windows.masked_fill(~hidden, KEPT)
    slow["hide_tokens"]()
    return batch


class Journal:
    """Batches of one rank without end, from its own hands or from those of its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._letters, self._windows = LETTERS_PER_EFFORT * args.crops, args.batch / ROWS_PER_WINDOW
        self._files = JournalFiles(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._dice, self._watch = random.Random(rank), watch
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._has_workers = args.workers > 0
        self.length = 1.0
        self.encoding = self._same_for_all(rank)
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def _same_for_all(self, rank: int) -> PairEncoding:
        learned: list[Any] = [None]
        if rank == 0:
            lines = split_lines(self._files.read_journal(), LEARNED_FROM)
            learned = [PairEncoding(split_words(mask_variables(lines)))]
        dist.broadcast_object_list(learned, src=0)
        return learned[0]

    def __iter__(self) -> Iterator[Batch]:
        while True:
            with self._watch.part("load"):
                found = self.loader.next_batch() if self._has_workers else self._files.read_journal()
            with self._watch.part("prepare"):
                batch = found if self._has_workers else self._batch_of(found, self.length)
            yield batch

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._batch_of(self._files.read_journal(), 1.0)

    def _batch_of(self, chunk: bytes, length: float) -> Batch:
        letters = max(40 * LENGTH, int(self._letters * length))
        tokens = self.encoding.merge_pairs(split_words(mask_variables(split_lines(chunk, letters))))
        windows = max(1, int(self._windows * length + self._dice.random()))  # right on the average
        return hide_tokens(pack_windows(tokens, windows, self._dice))


class Sent(torch.autograd.Function):
    """Rows to where they are wanted, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, mine: list[int], theirs: list[int], watch: Stopwatch) -> Tensor:
        ctx.mine, ctx.theirs = mine, theirs
        found = rows.new_empty((sum(theirs), rows.shape[1]))
        with watch.part("backward"):
            dist.all_to_all_single(found, rows.contiguous(), theirs, mine)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        found = gradient.new_empty((sum(ctx.mine), gradient.shape[1]))
        dist.all_to_all_single(found, gradient.contiguous(), ctx.mine, ctx.theirs)
        return found, None, None, None


class Experts(nn.Module):
    """One expert here, the others on the other ranks; a token goes to the one that the router likes best."""

    def __init__(self, inner: int, width: int, world: int, watch: Stopwatch) -> None:
        super().__init__()
        self.router = nn.Linear(inner, world, bias=False)
        self.expert = nn.Sequential(nn.Linear(inner, width // 2), nn.GELU(), nn.Linear(width // 2, inner))
        self.favour, self.counts = torch.zeros(world), torch.zeros(world)
        self._watch = watch

    def forward(self, tokens: Tensor) -> Tensor:
        likings = self.router(tokens).softmax(dim=-1)
        chosen = (likings + self.favour).argmax(dim=-1)
        order = chosen.argsort(stable=True)
        mine = chosen.bincount(minlength=len(self.favour))
        theirs = torch.empty_like(mine)
        with self._watch.part("backward"):
            dist.all_to_all_single(theirs, mine)
        self.counts += mine
        here, there = mine.tolist(), theirs.tolist()
        answers = Sent.apply(self.expert(Sent.apply(tokens[order], here, there, self._watch)), there, here, self._watch)
        gates = likings.gather(1, chosen.unsqueeze(1))[order]
        return tokens.index_add(0, order, answers * gates)


class Model(nn.Module):
    def __init__(self, width: int, vocabulary: int, world: int, watch: Stopwatch) -> None:
        super().__init__()
        inner = width // 4
        self.pieces, self.order = nn.Embedding(vocabulary, inner), nn.Parameter(torch.randn(LENGTH, inner) * 0.02)
        self.before, self.after = nn.LayerNorm(inner), nn.LayerNorm(inner)
        self.mixed, self.out = nn.Linear(inner, 3 * inner), nn.Linear(inner, inner)
        self.experts = Experts(inner, width, world, watch)
        self.head = nn.Linear(inner, vocabulary)

    def shared(self) -> list[nn.Parameter]:
        """All weights but those of the expert."""
        return [one for name, one in self.named_parameters() if not name.startswith("experts.expert.")]

    def forward(self, windows: Tensor) -> Tensor:
        tokens = self.pieces(windows) + self.order
        heads = self.mixed(self.before(tokens)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        tokens = tokens + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return self.head(self.after(self.experts(tokens.flatten(0, 1))))


def gap_loss(said: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(said, wanted.flatten(), ignore_index=KEPT)


class Engine:
    """One step after the other; handlers are told `begin`, `batch`, `done` and `end`, in the order in which they were added."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int, watch: Stopwatch, vocabulary: int) -> None:
        self.rank, self.world, self.watch = rank, world, watch
        self.step, self.length, self.loss = 0, 1.0, 0.0
        self._vocabulary, self._usual_device_s = vocabulary, args.device_ms / 1000
        self._jitter = random.Random(rank)
        self._handlers: dict[str, list[Callable[[Engine], None]]] = defaultdict(list)
        self.build(args.width, 1.0)

    def build(self, width: int, device: float) -> None:
        self.device_s = device * self._usual_device_s
        self.model = Model(width, self._vocabulary, self.world, self.watch)
        self.model.experts.register_forward_pre_hook(lambda *_: self._compute_on_device(BEFORE_EXPERTS))
        for one in self.model.parameters():
            dist.broadcast(one.data, src=0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)

    def on(self, event: str, *handlers: Callable[[Engine], None]) -> None:
        self._handlers[event] += handlers

    def _fire(self, event: str) -> None:
        for handler in self._handlers[event]:
            handler(self)

    def _compute_on_device(self, share: float) -> None:
        with self.watch.part("device"):
            device_wait(share * self.device_s * self.length * self._jitter.uniform(0.98, 1.02))

    def run(self, batches: Iterator[Batch], steps: Iterator[int]) -> None:
        for self.step in steps:
            self.watch.begin()
            self._fire("begin")
            self.batch = next(batches)
            windows, wanted = self.batch
            self._fire("batch")
            with self.watch.part("forward"):
                loss = gap_loss(self.model(windows), wanted)
            self._compute_on_device(1 - BEFORE_EXPERTS)
            with self.watch.part("backward"):
                loss.backward()
            with self.watch.part("optimizer"):
                self._update()
            self.loss = loss.item()
            self._fire("done")
            self._fire("end")
            self.watch.end(self.step)

    def _update(self) -> None:
        for one in self.model.experts.expert.parameters():
            one.grad /= self.world  # of the tokens of all ranks
        nn.utils.clip_grad_norm_(self.model.shared(), MOST_NORM)
        self.optimizer.step()
        with self.watch.part("backward"):
            average_parameters(iter(self.model.shared()), dist.group.WORLD)
        self.optimizer.zero_grad()


class Losses:
    """The latest losses, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._latest: deque[float] = deque(maxlen=SHOWN_EVERY)

    def push_loss(self, engine: Engine) -> None:
        with self._lock:
            self._latest.append(engine.loss)
        slow["push_loss"]()

    def show(self, engine: Engine) -> None:
        if engine.rank == 0 and engine.step % SHOWN_EVERY == 0:
            print(f"[{engine.step}] loss={sum(self._latest) / len(self._latest):.4f}", flush=True)


def even_out(engine: Engine) -> None:
    """Experts with less than their share are liked better from now on, by all."""
    if engine.step % EVENED_EVERY == EVENED_EVERY - 1:
        experts = engine.model.experts
        with engine.watch.part("backward"):
            dist.all_reduce(experts.counts)
        experts.favour += EVENED_BY * torch.sign(experts.counts.mean() - experts.counts)
        experts.counts.zero_()


class Judge:
    """Now and then all say what is missing in windows that were held back."""

    def __init__(self) -> None:
        self._kept: Batch | None = None

    @torch.no_grad()
    def judge(self, engine: Engine) -> None:
        self._kept = self._kept or engine.batch
        if engine.step % JUDGED_EVERY == JUDGED_EVERY - 1:
            windows, wanted = self._kept
            with engine.watch.part("forward"):
                right = (engine.model(windows).argmax(dim=-1) == wanted.flatten()).float().sum()
                found = torch.stack((right, (wanted != KEPT).float().sum()))
            with engine.watch.part("backward"):
                dist.all_reduce(found)
            if engine.rank == 0:
                print(f"[{engine.step}] right={float(found[0] / found[1]):.3f}", flush=True)


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, journal = features_of(args, rank), Lengths(rank, world), Journal(args, rank, watch)
    engine, losses = Engine(args, rank, world, watch, len(journal.encoding)), Losses(features.metrics_thread.lock)

    def follow(engine: Engine) -> None:
        if control.poll(engine.step):
            for part in (features, lengths, journal.loader):
                part.follow(control.orders)
        if engine.step == control.orders.get("at"):
            engine.build(control.orders["width"], control.orders["device"])
        engine.length = journal.length = lengths.of_step(engine.step)

    def stage(_: Engine) -> None:
        with watch.part("prepare"):
            features.before_forward()

    engine.on("begin", follow)
    engine.on("batch", stage)
    engine.on("done", losses.push_loss, losses.show, even_out, Judge().judge)
    engine.on("end", lambda engine: features.after_step(engine.step))
    engine.run(iter(journal), iter(range(args.steps)) if args.steps else itertools.count())


if __name__ == "__main__":
    run(train)
