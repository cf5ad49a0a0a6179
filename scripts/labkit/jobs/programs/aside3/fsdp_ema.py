"""FSDP2 with clipped gradients, a moving average of the weights and a state dict now and then."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

TOKENS, WIDTH, WORDS = 32, 128, 600


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        hidden = hidden + self.attend(normed, normed, normed, need_weights=False)[0]
        return hidden + self.feed(hidden)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Average:
    """The exponential moving average of this rank's shards."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay = decay
        self.shards = [part.detach().to_local().clone() for part in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for shard, part in zip(self.shards, model.parameters(), strict=True):
            shard.lerp_(part.to_local(), 1 - self.decay)


def pull_page(index: int) -> torch.Tensor:
    page = torch.randint(WORDS, (TOKENS + 1,), generator=torch.Generator().manual_seed(index))
    knobs.slow["pull_page"]()
    return page


def blank_out(page: torch.Tensor) -> torch.Tensor:
    blanked = torch.where(torch.rand(page.shape) < 0.1, 0, page)
    knobs.slow["blank_out"]()
    return blanked


def batches(rank: int, size: int = 12):
    for first in itertools.count(0, size):
        yield torch.stack([blank_out(pull_page(7 * rank + number)) for number in range(first, first + size)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    rank = dist.get_rank()
    model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, foreach=False)
    average = Average(model)
    knobs.begin(args.out, rank)
    for done, pages in enumerate(batches(rank), 1):
        logits = model(pages[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), pages[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        if done % 150 == 0:
            state = {name: part.full_tensor() for name, part in model.state_dict().items()}
            if rank == 0:
                torch.save(state, args.out / "state.pt")
        knobs.step(done)


if __name__ == "__main__":
    main()
