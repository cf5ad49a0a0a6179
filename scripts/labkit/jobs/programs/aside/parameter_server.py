"""Rank 0 holds the weights: the others send it their gradients, and get the new weights back, all in step."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn

ROWS, FIELDS = 40, 200


def scan_row(draw: torch.Generator) -> torch.Tensor:
    row = torch.rand(FIELDS, generator=draw)
    knobs.slow["scan_row"]()
    return row


def hash_row(row: torch.Tensor) -> torch.Tensor:
    hashed = torch.remainder(row * 7919.0, 1.0)
    knobs.slow["hash_row"]()
    return hashed


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FIELDS, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 1))


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def serve(model: nn.Module, workers: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    weights = flat([parameter.data for parameter in model.parameters()])
    version = 0
    while True:
        total, gradient = torch.zeros_like(weights), torch.empty_like(weights)
        for worker in range(1, workers + 1):
            dist.recv(gradient, worker)
            total += gradient
        place = 0
        for parameter in model.parameters():
            parameter.grad = total[place : place + parameter.numel()].view_as(parameter) / workers
            place += parameter.numel()
        optimizer.step()
        weights = flat([parameter.data for parameter in model.parameters()])
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        version += 1
        knobs.step(version)


def work(model: nn.Module, rank: int) -> None:
    draw = torch.Generator().manual_seed(rank)
    step = 0
    while True:
        rows = torch.stack([hash_row(scan_row(draw)) for _ in range(ROWS)])
        loss = (model(rows).squeeze(1) - rows.mean(1)).square().mean()
        model.zero_grad()
        loss.backward()
        dist.send(flat([parameter.grad for parameter in model.parameters()]), 0)
        weights = torch.empty(sum(parameter.numel() for parameter in model.parameters()))
        dist.recv(weights, 0)
        place = 0
        for parameter in model.parameters():
            parameter.data = weights[place : place + parameter.numel()].view_as(parameter)
            place += parameter.numel()
        step += 1
        knobs.step(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, model = dist.get_rank(), network()
    knobs.begin(args.out, rank)
    if rank == 0:
        serve(model, dist.get_world_size() - 1)
    else:
        work(model, rank)


if __name__ == "__main__":
    main()
