"""A job of submitit's local executor, two tasks on a node; each asks submitit who it is and exports what torch reads."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import submitit

PICTURES = 24


class Training:
    """What submitit pickles and calls in each task."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def __call__(self) -> None:
        import knobs
        import torch
        import torch.distributed as dist
        from torch import nn

        def open_picture(number: int) -> torch.Tensor:
            picture = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(number))
            knobs.slow["open_picture"]()
            return picture

        def color_jitter(picture: torch.Tensor) -> torch.Tensor:
            jittered = picture * torch.rand(3, 1, 1)
            knobs.slow["color_jitter"]()
            return jittered

        place = submitit.helpers.TorchDistributedEnvironment().export()
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        net = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 121, 10))
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        knobs.begin(self.out, place.rank)
        done = 0
        while True:
            batch = [
                color_jitter(open_picture((done * PICTURES + at) * place.world_size + place.rank))
                for at in range(PICTURES)
            ]
            loss = nn.functional.cross_entropy(net(torch.stack(batch)), torch.randint(10, (PICTURES,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            knobs.step(done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=int, required=True)
    args = parser.parse_args()
    executor = submitit.LocalExecutor(folder=args.out / "submitit")
    executor.update_parameters(tasks_per_node=args.tasks, nodes=1, timeout_min=600, gpus_per_node=0)
    job = executor.submit(Training(args.out))
    while not job.done():
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
