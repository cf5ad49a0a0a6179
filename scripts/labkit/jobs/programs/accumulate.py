"""A language model with DistributedDataParallel that accumulates gradients over four micro-batches (no_sync)."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, LENGTH = 512, 32
WORDS = ["a", "step", "is", "one", "iteration", "of", "the", "loop", "that", "the", "job", "itself", "would", "print"]


def read_line(draw: random.Random) -> str:
    line = " ".join(draw.choices(WORDS, k=LENGTH))
    knobs.slow["read_line"]()
    return line


def tokenize(line: str) -> list[int]:
    tokens = [sum(word.encode()) % VOCABULARY for word in line.split()]
    knobs.slow["tokenize"]()
    return tokens


def next_batch(draw: random.Random, size: int) -> torch.Tensor:
    return torch.tensor([tokenize(read_line(draw)) for _ in range(size)])


class Model(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--micro-batches", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    draw = random.Random(rank)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    knobs.begin(args.out, rank)
    for step in itertools.count(1):
        optimizer.zero_grad()
        for micro in range(args.micro_batches):
            tokens = next_batch(draw, 8)
            last = micro == args.micro_batches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / args.micro_batches
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item() * args.micro_batches:.4f}", flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
