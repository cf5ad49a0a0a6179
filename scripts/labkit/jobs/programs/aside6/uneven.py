"""DDP's join: ranks have different numbers of batches in an epoch, those that are done shadow the others; torchrun."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def read_clip(number: int) -> torch.Tensor:
    clip = torch.randn(400, generator=torch.Generator().manual_seed(number))
    knobs.slow["read_clip"]()
    return clip


def window(clip: torch.Tensor) -> torch.Tensor:
    windowed = clip * torch.hann_window(400)
    knobs.slow["window"]()
    return windowed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(400, 256), nn.ReLU(), nn.Linear(256, 20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    knobs.begin(args.out, rank)
    done = 0
    while True:
        with Join([model]):
            for _ in range(30 + rank):
                batch = torch.stack([window(read_clip(done * 24 + at)) for at in range(24)])
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += 1
                knobs.step(done)


if __name__ == "__main__":
    main()
