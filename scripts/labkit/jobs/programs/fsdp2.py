"""A small transformer sharded over all ranks with FSDP2 (fully_shard)."""

from __future__ import annotations

import argparse
import itertools
import random
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCABULARY, LENGTH, WIDTH = 512, 32, 128


def read_record(draw: random.Random) -> bytes:
    record = draw.randbytes(LENGTH)
    knobs.slow["read_record"]()
    return record


def tokenize(record: bytes) -> list[int]:
    tokens = [byte + 256 * (place % 2) for place, byte in enumerate(record)]
    knobs.slow["tokenize"]()
    return tokens


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, dropout=0.0) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(1)
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = random.Random(rank)
    knobs.begin(args.out, rank)
    for step in itertools.count(1):
        tokens = torch.tensor([tokenize(read_record(draw)) for _ in range(16)])
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
