"""A loop that reduces gradients by hand: an asynchronous all-reduce per parameter, and two scalars after it."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, BATCH = 384, 48


class Worker:
    def __init__(self, out: Path) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(WIDTH, 1024), nn.Tanh(), nn.Linear(1024, WIDTH))
        self.draw = torch.Generator().manual_seed(dist.get_rank())
        knobs.begin(out, dist.get_rank())

    def fetch(self) -> Tensor:
        point = torch.randn(WIDTH, generator=self.draw)
        knobs.slow["fetch"]()
        return point

    def jitter(self, point: Tensor) -> Tensor:
        moved = point + 0.01 * torch.randn(WIDTH, generator=self.draw)
        knobs.slow["jitter"]()
        return moved

    def batch(self) -> Tensor:
        return torch.stack([self.jitter(self.fetch()) for _ in range(BATCH)])

    def average(self) -> None:
        pending = [dist.all_reduce(p.grad, async_op=True) for p in self.net.parameters()]
        for work in pending:
            work.wait()

    def update(self) -> tuple[Tensor, Tensor]:
        points = self.batch()
        loss = ((self.net(points) - points) ** 2).mean()
        self.net.zero_grad()
        loss.backward()
        self.average()
        norm = torch.stack([p.grad.norm() for p in self.net.parameters()]).norm()
        dist.all_reduce(norm, op=dist.ReduceOp.MAX)
        with torch.no_grad():
            for p in self.net.parameters():
                p.sub_(0.01 * p.grad / dist.get_world_size())
        return loss.detach(), norm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worker = Worker(args.out)
    number = 0
    while number := number + 1:
        loss, norm = worker.update()
        dist.all_reduce(loss)
        if number % 50 == 0 and dist.get_rank() == 0:
            print(number, loss.item(), norm.item(), flush=True)
        knobs.step(number)


if __name__ == "__main__":
    main()
