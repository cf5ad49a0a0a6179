"""A mixture of experts, one on each rank: tokens go to the rank of their expert and back; the rest is averaged by hand."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import knobs
import torch
import torch.distributed as dist
from torch import nn

TOKENS, WIDTH = 192, 256


class Exchange(torch.autograd.Function):
    """Equal parts of the tokens to every rank; the gradients go the same way back."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(tokens)
        dist.all_to_all_single(received, tokens.contiguous())
        return received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(gradient)
        dist.all_to_all_single(received, gradient.contiguous())
        return received


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = torch.relu(self.before(tokens))
        return tokens + Exchange.apply(self.expert(Exchange.apply(tokens)))


def load_shard(step: int, rank: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * rank + step % 100)
    return [read_document(draw) for _ in range(24)]


def read_document(draw: torch.Generator) -> torch.Tensor:
    document = torch.randn(TOKENS // 24, WIDTH, generator=draw)
    knobs.slow["read_document"]()
    return document


def embed(document: torch.Tensor) -> torch.Tensor:
    embedded = document / document.norm(dim=1, keepdim=True)
    knobs.slow["embed"]()
    return embedded


def average(parameters: list[nn.Parameter]) -> None:
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(Layer(), Layer(), nn.Linear(WIDTH, WIDTH))
    shared = [parameter for name, parameter in model.named_parameters() if ".expert." not in name]
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    knobs.begin(args.out, rank)
    step = 0
    while True:
        tokens = torch.cat([embed(document) for document in load_shard(step, rank)])
        optimizer.zero_grad()
        loss = (model(tokens) - tokens).square().mean()
        loss.backward()
        average(shared)
        optimizer.step()
        step += 1
        if step % 40 == 0:
            losses = [torch.empty(()) for _ in range(dist.get_world_size())]
            dist.all_gather(losses, loss.detach())
        knobs.step(step)


if __name__ == "__main__":
    main()
