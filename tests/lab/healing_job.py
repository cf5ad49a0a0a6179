"""A DDP script whose rank 1 is slowed in `tokenize` while FILE exists: `torchrun healing_job.py SECONDS FILE`."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def tokenize(batch: torch.Tensor, slow: bool) -> torch.Tensor:
    if slow:
        end = time.perf_counter() + 0.06
        while time.perf_counter() < end:
            pass
    return batch * 2


def main() -> None:
    seconds, sick = float(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    optimizer = torch.optim.Adam(model.parameters())
    end = time.time() + seconds
    while time.time() < end:
        batch = tokenize(torch.randn(32, 64), rank == 1 and sick.exists())
        time.sleep(0.1)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
