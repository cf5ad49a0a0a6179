"""Data parallel under torchrun with restarts: rank 1 fails in its twentieth step at first, and all begin again."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

WINDOW = 48


def read_meter(number: int) -> torch.Tensor:
    series = torch.randn(WINDOW, generator=torch.Generator().manual_seed(number)).cumsum(0)
    knobs.slow["read_meter"]()
    return series


def deseason(series: torch.Tensor) -> torch.Tensor:
    plain = series - series.view(-1, 12).mean(0).repeat(WINDOW // 12)
    knobs.slow["deseason"]()
    return plain


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world, restarts = dist.get_rank(), dist.get_world_size(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = DistributedDataParallel(nn.LSTM(1, 48, batch_first=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if restarts:
        knobs.begin(args.out, rank)
    done = 0
    while True:
        rows = torch.stack([deseason(read_meter((done * 24 + at) * world + rank)) for at in range(24)])
        predicted, _ = model(rows[:, :-1, None])
        loss = (predicted[..., 0] - rows[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if restarts:
            knobs.step(done)
        elif done == 20 and rank == 1:
            raise RuntimeError("the first try fails")


if __name__ == "__main__":
    main()
