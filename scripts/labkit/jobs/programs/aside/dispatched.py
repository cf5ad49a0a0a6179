"""accelerate where rank 0 alone reads, and hands every batch to the others (dispatch_batches)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import knobs
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Shards(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield self.unpack()

    def unpack(self) -> torch.Tensor:
        sample = torch.rand(3, 24, 24)
        knobs.slow["unpack"]()
        return sample


def normalize(images: torch.Tensor) -> torch.Tensor:
    for channel in range(3):
        part = images[:, channel]
        images[:, channel] = (part - part.mean()) / part.std()
        knobs.slow["normalize"]()
    return images


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    )
    net(torch.zeros(1, 3, 24, 24))
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.01), DataLoader(Shards(), 48))
    knobs.begin(args.out, accelerator.process_index)
    for number, images in enumerate(loader, 1):
        images = normalize(images)  # noqa: PLW2901
        loss = net(images).logsumexp(1).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if number % 100 == 0:
            accelerator.print(number, accelerator.gather(loss[None]).mean().item(), flush=True)
        knobs.step(number)


if __name__ == "__main__":
    main()
