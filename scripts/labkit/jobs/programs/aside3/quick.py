"""Steps of some 5 ms: a small network, DDP, ranks forked by the script itself."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, FEATURES = 8, 32


def measure() -> torch.Tensor:
    point = torch.randn(FEATURES)
    knobs.slow["measure"]()
    return point


def mirror(point: torch.Tensor) -> torch.Tensor:
    mirrored = torch.where(torch.rand(()) < 0.5, -point, point)
    knobs.slow["mirror"]()
    return mirrored


def run(rank: int, args: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, FEATURES)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    knobs.begin(args.out, rank)
    done = 0
    while True:
        points = torch.stack([mirror(measure()) for _ in range(BATCH)])
        loss = (model(points) - points.abs()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done % 1000 == 0 and rank == 0:
            print(f"{done} {loss.item():.4f}", flush=True)
        knobs.step(done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    children = []
    for rank in range(args.processes):
        child = os.fork()
        if child == 0:
            run(rank, args)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
