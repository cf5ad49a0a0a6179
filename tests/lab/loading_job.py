"""A DDP job that trains, and then waits at a barrier while rank 0 downloads: `torchrun loading_job.py FILE URL`, once FILE is there."""

import sys
import time
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def fetch_shard(url: str) -> None:
    with urllib.request.urlopen(url) as answer:
        answer.read()


def main() -> None:
    order, url = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    ordered = torch.zeros(1)
    while True:
        time.sleep(0.05)
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        ordered.fill_(float(order.exists()))
        dist.broadcast(ordered, 0)
        if ordered.item():
            if dist.get_rank() == 0:
                fetch_shard(url)
            dist.barrier()


if __name__ == "__main__":
    main()
