"""torch.distributed.pipelining with an interleaved schedule: each rank has two of the stages, first and last rank differ."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

WIDTH, BATCH, MICRO, CHUNKS = 192, 48, 4, 2


def collect(count: int) -> torch.Tensor:
    rows = torch.randn(count, WIDTH)
    knobs.slow["collect"]()
    return rows


class Chunk(nn.Module):
    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = self.scale(hidden + block(hidden).relu())
        return hidden

    def scale(self, hidden: torch.Tensor) -> torch.Tensor:
        scaled = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-5)
        knobs.slow["scale"]()
        return scaled


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = nn.ModuleList(Chunk() for _ in range(CHUNKS))
    stages = [
        PipelineStage(chunk, rank + world * place, world * CHUNKS, torch.device("cpu"))
        for place, chunk in enumerate(chunks)
    ]
    schedule = ScheduleInterleaved1F1B(stages, MICRO, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(chunks.parameters(), 1e-3)
    knobs.begin(args.out, rank)
    done = 0
    while True:
        rows = collect(BATCH)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        given = (rows,) if rank == 0 else ()
        wanted = {"target": rows.roll(1, 0), "losses": losses} if rank == world - 1 else {}
        schedule.step(*given, **wanted)
        optimizer.step()
        done += 1
        if losses and done % 20 == 0:
            print(f"{done}: {sum(loss.item() for loss in losses) / MICRO:.4f}", flush=True)
        knobs.step(done)


if __name__ == "__main__":
    main()
