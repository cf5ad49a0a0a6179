"""L-BFGS: the optimiser calls the model as often as its line search wants, each time with a backward pass and its all-reduce."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

POINTS, CURVES = 64, 96


class Curves:
    """Noisy curves, and what a physicist does to them before a fit."""

    def __init__(self, rank: int) -> None:
        self.random = torch.Generator().manual_seed(rank)

    def measure(self) -> torch.Tensor:
        phase, rate = torch.rand(2, generator=self.random)
        curve = torch.sin(torch.linspace(0, 12, POINTS) * (1 + rate) + 6 * phase)
        knobs.slow["measure"]()
        return curve + 0.1 * torch.randn(POINTS, generator=self.random)

    def remove_drift(self, curve: torch.Tensor) -> torch.Tensor:
        line = torch.linspace(0, 1, POINTS)
        knobs.slow["remove_drift"]()
        return curve - line * (curve[-1] - curve[0]) - curve.mean()

    def batch(self) -> torch.Tensor:
        return torch.stack([self.remove_drift(self.measure()) for _ in range(CURVES)])


def fit(out: Path) -> None:
    rank = dist.get_rank()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(POINTS, 192), nn.Tanh(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, POINTS))
    )
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4, history_size=5, line_search_fn="strong_wolfe")
    curves = Curves(rank)
    knobs.begin(out, rank)
    for number in range(1, 10_000_000):
        wanted = curves.batch()

        def closure(wanted: torch.Tensor = wanted) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(wanted), wanted)
            loss.backward()
            # Every rank's search must take the same turns.
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.SUM)
            return mean / dist.get_world_size()

        loss = optimizer.step(closure)
        if number % 50 == 0 and rank == 0:
            print(number, float(loss), flush=True)
        knobs.step(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    fit(args.out)


if __name__ == "__main__":
    main()
