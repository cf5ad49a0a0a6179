"""A language model sharded with FSDP2 over the GPUs, whose faults are switched on while it runs. It knows nothing of rankscope.

One rank, started with the environment that torchrun sets. Each step: two micro-batches of documents that loader workers read
and packed, forward and backward in bfloat16, gradients clipped, AdamW, a scheduler. FILE.fault says what is wrong (rank.py);
FILE.rank<N> gets the instant of CLOCK_MONOTONIC at which each step began.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank import End, Switch, run
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, IterableDataset

VOCABULARY, LENGTH, WIDTH, BLOCKS = 1024, 256, 256, 4
MICRO_BATCHES, WORKERS = 2, 2
# How much more there is of each document: these models are small.
_LONGER = 48


class Documents(IterableDataset):  # type: ignore[misc]
    """Documents without end, read in a loader's worker."""

    def __init__(self, switch: Switch, batch: int) -> None:
        self.switch, self.batch = switch, batch

    def __iter__(self) -> Iterator[Tensor]:
        draw = random.Random(os.getpid())
        while True:
            yield self.read_document(draw)

    def read_document(self, draw: random.Random) -> Tensor:
        """`reader`: seconds for a whole batch."""
        seconds = self.switch.seconds("reader") / self.batch
        if seconds:
            time.sleep(seconds)
        return self.decode_document(draw.randbytes(4 * (LENGTH + 1)))

    def decode_document(self, record: bytes) -> Tensor:
        """`decode`: seconds for a whole batch."""
        until = time.perf_counter() + self.switch.seconds("decode") / self.batch
        tokens = torch.frombuffer(bytearray(record), dtype=torch.int32) % VOCABULARY
        while time.perf_counter() < until:
            sum(record)
        return tokens


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward layer, each with what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        parts = self.heads(self.before(hidden)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.feed(self.between(hidden))


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def sharded(device: torch.device) -> nn.Module:
    torch.manual_seed(1)
    model = Model().to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if device.type == "cuda" else None)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def mask_spans(tokens: Tensor, seconds: float) -> Tensor:
    """Some spans of each document are not to be predicted; for at least so long."""
    draw, until = random.Random(int(tokens[0, 0])), time.perf_counter() + seconds
    for document in range(len(tokens)):
        tokens[document, draw.randrange(LENGTH) :][:4] = 0
    while time.perf_counter() < until:
        sum(draw.randrange(LENGTH) for _ in range(64))
    return tokens


def log_metrics(loss: Tensor, board: Board, seconds: float) -> None:
    """One number for the board; whoever wants each of many asks the GPU each time."""
    value: float = loss.item()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        value += (loss * 0.5).item() / 2**20
    with board.lock:
        board.values.append(value)
        del board.values[:-100]


def release_memory(device: torch.device, seconds: float) -> None:
    """Gives all cached memory back to the driver and takes it again, as some do against fragmentation."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        held = [torch.empty(32 << 20, dtype=torch.uint8, device=device) for _ in range(8)]
        del held
        torch.cuda.empty_cache()


def tidy_up(seconds: float) -> None:
    """Collects garbage again and again, as some do against leaks."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        gc.collect()


def save_snapshot(model: nn.Module, path: Path, seconds: float) -> None:
    """This rank's part of the model, safe on disk."""
    until = time.perf_counter() + seconds
    parts = [value.to_local().cpu() for value in model.state_dict().values()]
    while time.perf_counter() < until:
        with path.open("wb") as file:
            torch.save(parts, file)
            file.flush()
            os.fsync(file.fileno())


def wait_for_word(store: dist.Store, switch: Switch) -> None:
    """For a word in the job's store that nobody puts there, until the switch is turned off."""
    while switch.seconds("word"):
        try:
            store.wait(["snapshot-is-complete"], timedelta(seconds=2))
        except RuntimeError:
            continue


class Helper(threading.Thread):
    """What goes on beside the training: `work` for so many seconds after each step that asks for it."""

    def __init__(self, work: Callable[[float], None]) -> None:
        super().__init__(daemon=True)
        self.work, self.wanted, self.seconds = work, threading.Event(), 0.0
        self.start()

    def ask(self, seconds: float) -> None:
        if seconds:
            self.seconds = seconds
            self.wanted.set()

    def run(self) -> None:
        while True:
            self.wanted.wait()
            self.wanted.clear()
            self.work(self.seconds)


def refresh_index(seconds: float) -> None:
    """An index of what was seen, in Python."""
    seen: dict[int, float] = {}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for number in range(256):
            seen[number * 7919 % 1021] = math.sqrt(number)


class Board:
    """The last numbers. While they are sent away nobody writes another one."""

    def __init__(self) -> None:
        self.lock, self.values = threading.Lock(), list[float]()

    def send(self, seconds: float) -> None:
        with self.lock:
            time.sleep(seconds)


def train(file: Path, batch: int, until: float, rank: int, device: torch.device) -> None:
    switch = Switch(file, rank)
    model = sharded(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    loader = DataLoader(Documents(switch, batch), batch, num_workers=WORKERS, pin_memory=device.type == "cuda")
    batches, board = iter(loader), Board()
    index, sender = Helper(refresh_index), Helper(board.send)
    store = dist.distributed_c10d._get_default_store()
    end = End(until, device)
    with Path(f"{file}.rank{rank}").open("w", buffering=1) as account:
        for step in itertools.count(1):
            account.write(f"{time.monotonic():.6f}\n")
            if switch.seconds("word"):
                wait_for_word(store, switch)
            longer = _LONGER if switch.seconds("longer") else 1
            for micro in range(MICRO_BATCHES):
                tokens = mask_spans(next(batches), switch.seconds("masks") / MICRO_BATCHES)
                tokens = tokens.to(device, torch.int64, non_blocking=True).repeat(longer, 1)
                model.set_requires_gradient_sync(micro == MICRO_BATCHES - 1)
                loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
                (loss / MICRO_BATCHES).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            log_metrics(loss.detach(), board, switch.seconds("metrics"))
            tidy_up(switch.seconds("collect"))
            if seconds := switch.seconds("memory"):
                release_memory(device, seconds)
            if seconds := switch.seconds("snapshot"):
                save_snapshot(model, Path(f"{file}.snapshot"), seconds)
            index.ask(switch.seconds("index"))
            sender.ask(switch.seconds("lock"))
            if end.reached(step):
                return


if __name__ == "__main__":
    run(train, 16)
