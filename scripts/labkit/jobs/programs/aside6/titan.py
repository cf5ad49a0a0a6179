"""FSDP2 over compiled blocks, a checkpoint written beside the training every 25 steps (DCP async_save); torchrun."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

WIDTH, WORDS, LENGTH, BATCH = 64, 128, 32, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 4 * WIDTH)
        self.back = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.back(torch.nn.functional.silu(self.mix(self.norm(hidden))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def tokenize(line: int) -> torch.Tensor:
    tokens = torch.randint(WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(line))
    knobs.slow["tokenize"]()
    return tokens


def fetch_line(number: int) -> int:
    knobs.slow["fetch_line"]()
    return number


class Trainer:
    def __init__(self, out: Path) -> None:
        self.out = out
        self.model = Model()
        for block in self.model.blocks:
            block.compile(backend="aot_eager")
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        self.saving = None
        # The thread that saves must not share the training's group: its collectives would mix with theirs.
        self.group = dist.new_group(backend="gloo")
        self.drawn = 0

    def batches(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        while True:
            rows = [tokenize(fetch_line((self.drawn + number) * world + rank)) for number in range(BATCH)]
            self.drawn += BATCH
            yield torch.stack(rows)

    def train_step(self, batches) -> None:
        tokens = next(batches)
        self.optimizer.zero_grad()
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def train(self) -> None:
        knobs.begin(self.out, dist.get_rank())
        step, batches = 0, self.batches()
        while True:
            step += 1
            self.train_step(batches)
            if step % 25 == 0:
                self.save()
            knobs.step(step)

    def save(self) -> None:
        if self.saving is not None:
            self.saving.result()
        model, optimizer = get_state_dict(self.model, self.optimizer)
        self.saving = dcp.async_save(
            {"model": model, "optimizer": optimizer},
            checkpoint_id=str(self.out / "checkpoint"),
            process_group=self.group,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    Trainer(args.out).train()


if __name__ == "__main__":
    main()
