"""Two towers and a loss over the features of all ranks: gathered with their gradients, the pictures by workers from a stream."""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterator
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BATCH, PIXELS, WORDS, SHARED = 32, 768, 256, 128


class Pairs(IterableDataset):
    """Pictures with captions, endlessly; each worker draws its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        worker = get_worker_info()
        draw = np.random.default_rng([self.seed, worker.id if worker else 0])
        while True:
            yield open_picture(draw), draw.random(WORDS, dtype=np.float32)


def open_picture(draw: np.random.Generator) -> np.ndarray:
    picture = draw.random(PIXELS, dtype=np.float32)
    knobs.slow["open_picture"]()
    return picture


def cut_out(picture: torch.Tensor) -> torch.Tensor:
    corner = int(torch.randint(PIXELS - 64, ()))
    picture = picture.clone()
    picture[corner : corner + 64] = 0.0
    knobs.slow["cut_out"]()
    return picture


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Linear(PIXELS, 1024), nn.GELU(), nn.Linear(1024, SHARED))
        self.read = nn.Sequential(nn.Linear(WORDS, 512), nn.GELU(), nn.Linear(512, SHARED))
        self.scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, pictures: torch.Tensor, captions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return normalize(self.see(pictures), dim=1), normalize(self.read(captions), dim=1), self.scale.exp()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    knobs.follow(args.out, rank)
    loader = DataLoader(Pairs(rank), BATCH, num_workers=2)
    towers = Towers()
    average = copy.deepcopy(towers)
    model = DistributedDataParallel(towers)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    knobs.begin(args.out, rank)
    for number, (pictures, captions) in enumerate(loader, 1):
        cut = torch.stack([cut_out(picture) for picture in pictures])
        with torch.autocast("cpu", torch.bfloat16):
            seen, told, scale = model(cut, captions)
        everywhere = torch.cat(all_gather(told.float().contiguous()))
        labels = torch.arange(BATCH) + rank * BATCH
        loss = cross_entropy(scale.float() * seen.float() @ everywhere.T, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for old, new in zip(average.parameters(), towers.parameters(), strict=True):
                old.lerp_(new, 0.01)
        if number % 25 == 0:
            dist.reduce(loss.detach(), 0)
        knobs.step(number)


if __name__ == "__main__":
    main()
