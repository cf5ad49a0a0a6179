"""A DDP script that does what FILE says as long as it is there: `torchrun healing_job.py SECONDS FILE`.

slow      rank 1 is slowed in `tokenize`
loop      rank 1 never comes back from `search`
save      rank 0 writes a checkpoint for some seconds, and the others wait; once
evaluate  all ranks evaluate for some seconds, without any collective; once
compact   rank 1 is in `compact` for half a second in every 20th step
"""

import os
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


def search(until: float) -> None:
    while time.time() < until:
        pass


def save(path: Path, seconds: float) -> None:
    end = time.time() + seconds
    with path.open("wb") as file:
        while time.time() < end:
            file.write(bytes(4 << 20))
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            time.sleep(0.05)


def evaluate(model: nn.Module, seconds: float) -> None:
    end = time.time() + seconds
    with torch.no_grad():
        while time.time() < end:
            model(torch.randn(4096, 64))


def compact(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def asked(sick: Path) -> str:
    try:
        return sick.read_text().strip()
    except OSError:
        return ""


def main() -> None:
    seconds, sick = float(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    optimizer = torch.optim.Adam(model.parameters())
    end, what, step = time.time() + seconds, "", 0
    while time.time() < end:
        step += 1
        if what == "compact" and rank == 1 and step % 20 == 0:
            compact(0.5)
        what, before = asked(sick), what
        if what == "loop" and rank == 1:
            search(end)
        if what != before and what == "save" and rank == 0:
            save(sick.with_name("checkpoint"), 9.0)
        if what != before and what == "evaluate":
            evaluate(model.module, 9.0)
        batch = tokenize(torch.randn(32, 64), rank == 1 and what == "slow")
        time.sleep(0.1)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
