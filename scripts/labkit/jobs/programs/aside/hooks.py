"""No wrapper: each parameter's gradient is sent off from a hook as soon as it is there, and awaited before the update."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn

ROWS, FIELDS = 32, 64


def pull(index: int) -> list[float]:
    row = [((index * 31 + field * 17) % 97) / 97 for field in range(FIELDS)]
    knobs.slow["pull"]()
    return row


def encode(row: list[float]) -> list[float]:
    encoded = [value * value for value in row]
    knobs.slow["encode"]()
    return encoded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(FIELDS, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    under_way: list[tuple[dist.Work, torch.Tensor]] = []

    def send_off(parameter: torch.Tensor) -> None:
        under_way.append((dist.all_reduce(parameter.grad, async_op=True), parameter))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(send_off)
    knobs.begin(args.out, rank)
    done = 0
    while True:
        rows = [encode(pull(world * (ROWS * done + place) + rank)) for place in range(ROWS)]
        x = torch.tensor(rows)
        loss = (model(x).squeeze(1) - x.mean(1)).square().mean()
        loss.backward()
        with torch.no_grad():
            for work, parameter in under_way:
                work.wait()
                parameter.sub_(parameter.grad, alpha=0.05 / world)
                parameter.grad = None
        under_way.clear()
        done += 1
        if done % 50 == 0:
            dist.all_reduce(loss.detach())
        knobs.step(done)


if __name__ == "__main__":
    main()
