"""An ordinary DDP training script that knows nothing of Rankscope or its lab: `torchrun plain_job.py SECONDS [SLOW_RANK [PAUSE]]`."""

import sys
import time

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
    seconds, slow_rank = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.05
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    optimizer = torch.optim.Adam(model.parameters())
    end = time.time() + seconds
    stop = torch.zeros(1)
    while not stop.item():
        batch = tokenize(torch.randn(32, 64), rank == slow_rank)
        time.sleep(pause)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stop.fill_(float(time.time() > end))
        dist.broadcast(stop, 0)  # all ranks leave in the same step
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
