"""A loop of one's own on Lightning Fabric, which launches its processes itself; accumulates over two batches."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH, WORDS = 64, 2000


class Corpus(Dataset):
    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return mask(load_text(index))


def load_text(index: int) -> torch.Tensor:
    text = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
    knobs.slow["load_text"]()
    return text


def mask(text: torch.Tensor) -> torch.Tensor:
    masked = torch.where(torch.rand(LENGTH) < 0.15, 0, text)
    knobs.slow["mask"]()
    return masked


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 96)
        self.mix = nn.GRU(96, 96, batch_first=True)
        self.out = nn.Linear(96, WORDS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.out(self.mix(self.words(text))[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=2)
    args = parser.parse_args()
    fabric = L.Fabric(accelerator="cpu", devices=args.devices, strategy="ddp")
    fabric.launch()
    torch.set_num_threads(1)
    model = Language()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(DataLoader(Corpus(), 8, shuffle=True))
    knobs.begin(args.out, fabric.global_rank)
    updates = batches = 0
    while True:
        for text in loader:
            batches += 1
            last = batches % 2 == 0
            with fabric.no_backward_sync(model, enabled=not last):
                loss = nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten())
                fabric.backward(loss)
            if last:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
                if updates % 20 == 0:
                    fabric.print(updates, fabric.all_reduce(loss).item(), flush=True)
                knobs.step(updates)


if __name__ == "__main__":
    main()
