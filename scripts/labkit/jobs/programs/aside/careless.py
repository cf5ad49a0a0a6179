"""Gradient accumulation without no_sync: each of twelve micro-batches is averaged over the ranks, and an iteration takes seconds."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES, SAMPLES, WIDTH = 12, 16, 512


def fetch_sample(index: int) -> torch.Tensor:
    sample = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
    knobs.slow["fetch_sample"]()
    return sample


def denoise(sample: torch.Tensor) -> torch.Tensor:
    clean = torch.nn.functional.avg_pool1d(sample[None, None], 5, 1, 2)[0, 0]
    knobs.slow["denoise"]()
    return clean


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    blocks = [part for _ in range(6) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    knobs.begin(args.out, rank)
    micro = 0
    while True:
        first = SAMPLES * (world * micro + rank)
        batch = torch.stack([denoise(fetch_sample(first + place)) for place in range(SAMPLES)])
        loss = (model(batch) - batch).square().mean() / MICRO_BATCHES
        scaler.scale(loss).backward()
        micro += 1
        if micro % MICRO_BATCHES == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            knobs.step(micro // MICRO_BATCHES)


if __name__ == "__main__":
    main()
