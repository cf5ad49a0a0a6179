"""Tensor and data parallel on a 2 × 2 mesh: each layer split over two ranks, each batch over two pairs of them."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

FEATURES, HIDDEN, CLASSES = 128, 512, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(FEATURES, HIDDEN)
        self.down = nn.Linear(HIDDEN, FEATURES)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(F.relu(self.up(hidden)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def read_row(draw: np.random.Generator) -> np.ndarray:
    row = draw.standard_normal(FEATURES, dtype=np.float32)
    knobs.slow["read_row"]()
    return row


def normalize(row: np.ndarray) -> np.ndarray:
    result = (row - row.mean()) / (row.std() + 1e-6)
    knobs.slow["normalize"]()
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(1)
    model = Model()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # The two ranks of a tensor-parallel pair train on the same batch.
    draw = np.random.default_rng(mesh["dp"].get_local_rank())
    knobs.begin(args.out, dist.get_rank())
    for step in itertools.count(1):
        rows = np.stack([normalize(read_row(draw)) for _ in range(64)])
        inputs = torch.from_numpy(rows)
        loss = F.cross_entropy(model(inputs), (inputs[:, :CLASSES]).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
