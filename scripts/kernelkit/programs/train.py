"""An ordinary DDP training script over gloo that knows nothing of rankscope: train.py FOLDER.

Rank 1 is slow in `augment` while FOLDER/slow exists. Rank 0 writes the number of its steps to FOLDER/steps.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SLOW_S = 0.8


def augment(batch: torch.Tensor, slow: bool) -> torch.Tensor:
    if slow:
        end = time.perf_counter() + SLOW_S
        while time.perf_counter() < end:
            pass
    return batch * 2


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        batch = augment(torch.randn(32, 64), rank == 1 and (folder / "slow").exists())
        time.sleep(0.2)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            (folder / "steps").write_text(str(step))


main()
