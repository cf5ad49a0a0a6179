"""Embeddings and a tower over them, a module of a package; ranks by `python -m torch.distributed.run --module`, a barrier per epoch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, EPOCH = 32, 96, 80
USERS, ITEMS, HISTORY = 5000, 3000, 16


@dataclass
class Visit:
    user: int
    items: np.ndarray
    clicked: float


class VisitLog:
    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def read_visit(self) -> Visit:
        visit = Visit(
            int(self.draw.integers(USERS)), self.draw.integers(0, ITEMS, HISTORY), float(self.draw.random() < 0.3)
        )
        knobs.slow["read_visit"]()
        return visit

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        visits = [self.read_visit() for _ in range(size)]
        users = torch.tensor([visit.user for visit in visits])
        items = torch.tensor([deduplicate(visit.items) for visit in visits])
        return users, items, torch.tensor([visit.clicked for visit in visits])


def deduplicate(items: np.ndarray) -> list[int]:
    kept = list(dict.fromkeys(items.tolist()))
    knobs.slow["deduplicate"]()
    return kept + [0] * (HISTORY - len(kept))


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
