"""Embeddings with sparse gradients, a tower over them; ranks by `python -m torch.distributed.run --module`, a barrier per epoch."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .data import HISTORY, ITEMS, USERS, VisitLog

WIDTH, BATCH, EPOCH = 32, 96, 80


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH)
        self.items = nn.EmbeddingBag(ITEMS, WIDTH)
        self.tower = nn.Sequential(
            nn.Linear(2 * WIDTH, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return self.tower(torch.cat([self.users(users), self.items(items)], 1))[:, 0]


def train_one_epoch(model: nn.Module, log: VisitLog, optimizer: torch.optim.Optimizer, done: int) -> int:
    for _ in range(EPOCH):
        users, items, clicked = log.batch(BATCH)
        loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        knobs.step(done)
    return done


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(TwoTower())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    log = VisitLog(dist.get_rank())
    knobs.begin(args.out, dist.get_rank())
    done = 0
    while True:
        done = train_one_epoch(model, log, optimizer, done)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"{done} steps, items of {HISTORY}", flush=True)


if __name__ == "__main__":
    main()
