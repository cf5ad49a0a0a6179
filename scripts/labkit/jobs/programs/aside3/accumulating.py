"""accelerate: `accumulate` over four batches, a learning-rate schedule, metrics gathered from all now and then."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import knobs
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

PATCH, PATCHES, CLASSES = 96, 36, 12


class Tiles(IterableDataset):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        while True:
            tile = crop_tile()
            yield adjust_contrast(tile), random.randrange(CLASSES)


def crop_tile() -> torch.Tensor:
    tile = torch.rand(PATCHES, PATCH)
    knobs.slow["crop_tile"]()
    return tile


def adjust_contrast(tile: torch.Tensor) -> torch.Tensor:
    adjusted = (tile - tile.mean()) * random.uniform(0.8, 1.2)
    knobs.slow["adjust_contrast"]()
    return adjusted


class Mixer(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.inward = nn.Linear(PATCH, width)
        self.over_patches = nn.ModuleList(nn.Linear(PATCHES, PATCHES) for _ in range(3))
        self.over_channels = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        hidden = self.inward(tiles)
        for patches, channels in zip(self.over_patches, self.over_channels, strict=True):
            hidden = hidden + patches(hidden.transpose(1, 2)).relu().transpose(1, 2)
            hidden = hidden + channels(hidden).relu()
        return self.head(hidden.mean(1))


def training_function(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = Mixer()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 / (1 + done / 1000))
    loader = DataLoader(Tiles(), args.batch)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    loss_of = nn.CrossEntropyLoss()
    done, total = 0, torch.zeros(())
    knobs.begin(args.out, accelerator.process_index)
    for tiles, labels in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model(tiles), labels)
            total += loss.detach()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
            if done % 25 == 0:
                mean = accelerator.gather(total).mean().item() / 100
                accelerator.print(f"{done}: {mean:.4f}", flush=True)
                total.zero_()
            knobs.step(done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=16)
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
