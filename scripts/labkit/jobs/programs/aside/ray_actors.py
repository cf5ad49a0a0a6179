"""Actors of Ray without Ray Train: made in the reverse order of their ranks, each in a process group of torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
import knobs

FEATURES = 200


@ray.remote(num_cpus=1)
class Trainer:
    def __init__(self, rank: int, world: int, port: int, out: str) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 1500), nn.ReLU(), nn.Linear(1500, 800)))
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), 1e-4)
        knobs.begin(out, rank)

    def query(self) -> torch.Tensor:
        row = torch.rand(FEATURES)
        knobs.slow["query"]()
        return row

    def scale(self, row: torch.Tensor) -> torch.Tensor:
        scaled = (row - row.min()) / (row.max() - row.min())
        knobs.slow["scale"]()
        return scaled

    def fit(self, first: int, updates: int) -> int:
        for number in range(first, first + updates):
            rows = torch.stack([self.scale(self.query()) for _ in range(80)])
            self.optimizer.zero_grad()
            self.model(rows).pow(2).mean().backward()
            self.optimizer.step()
            knobs.step(number)
        return first + updates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=3)
    args = parser.parse_args()
    programs = str(Path(__file__).parent)
    ray.init(num_cpus=args.workers + 1, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": programs}})
    actors = [Trainer.remote(rank, args.workers, args.port, args.out) for rank in reversed(range(args.workers))]
    first = 1
    while True:
        first = ray.get([actor.fit.remote(first, 5000) for actor in actors])[0]


if __name__ == "__main__":
    main()
