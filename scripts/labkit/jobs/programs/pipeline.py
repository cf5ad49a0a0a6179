"""A perceptron cut into stages, one per rank, with torch.distributed.pipelining (GPipe, four micro-batches)."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WIDTH, BATCH, MICRO_BATCHES = 256, 64, 4


class Stage(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = regularize(F.relu(layer(hidden)))
        return hidden


def regularize(hidden: torch.Tensor) -> torch.Tensor:
    result = F.dropout(hidden, 0.1)
    knobs.slow["regularize"]()
    return result


def read_samples(count: int) -> torch.Tensor:
    samples = torch.randn(count, WIDTH)
    knobs.slow["read_samples"]()
    return samples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = Stage(layers=12)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    knobs.begin(args.out, rank)
    for step in itertools.count(1):
        samples = read_samples(BATCH)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(samples)
        elif rank == world - 1:
            schedule.step(target=samples, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        if step % 10 == 0 and losses:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
