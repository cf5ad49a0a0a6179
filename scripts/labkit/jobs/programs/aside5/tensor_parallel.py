"""Tensor parallel in pairs, data parallel across pairs: DTensor's parallelize_module, batches from a generator; torchrun."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, LAYERS, BATCH = 192, 3, 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(torch.relu(self.up(self.norm(inputs))))


def batches(seed: int) -> Iterator[torch.Tensor]:
    number = seed * 1_000_000
    while True:
        yield torch.stack([quantize(pull_trace(number + row)) for row in range(BATCH)])
        number += BATCH


def pull_trace(number: int) -> torch.Tensor:
    trace = torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)).cumsum(0)
    knobs.slow["pull_trace"]()
    return trace


def quantize(trace: torch.Tensor) -> torch.Tensor:
    levels = torch.bucketize(trace + random.gauss(0, 0.01), torch.linspace(-8, 8, 64))
    knobs.slow["quantize"]()
    return levels.float() / 32 - 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(LAYERS)])
    for block in model:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    across = mesh["data"].get_group()
    knobs.begin(args.out, rank)
    # Both of a pair read the same samples.
    for number, inputs in enumerate(batches(rank // 2), 1):
        loss = (model(inputs) - inputs.roll(1, dims=1)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            gradient = parameter.grad
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            dist.all_reduce(local, op=dist.ReduceOp.SUM, group=across)
            local.div_(world // 2)
        optimizer.step()
        optimizer.zero_grad()
        knobs.step(number)


if __name__ == "__main__":
    main()
