"""Local SGD: every rank trains by itself, and their weights are averaged every eighth iteration."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn

PERIOD, WIDTH = 8, 256


def sample_row() -> torch.Tensor:
    row = torch.randn(WIDTH)
    knobs.slow["sample_row"]()
    return row


def perturb(row: torch.Tensor) -> torch.Tensor:
    other = row * (1 + 0.01 * torch.randn(WIDTH))
    knobs.slow["perturb"]()
    return other


@torch.no_grad()
def average(model: nn.Module) -> None:
    for weights in model.parameters():
        dist.all_reduce(weights)
        weights.div_(dist.get_world_size())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    knobs.begin(args.out, dist.get_rank())
    step = 0
    while True:
        rows = torch.stack([perturb(sample_row()) for _ in range(64)])
        loss = ((model(rows) - rows) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % PERIOD == 0:
            average(model)
        knobs.step(step)


if __name__ == "__main__":
    main()
