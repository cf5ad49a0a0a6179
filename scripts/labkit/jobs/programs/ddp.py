"""Image classification with DistributedDataParallel: loader workers, a logged loss, evaluation and checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 10
SIZE = 32


class Photos(Dataset):
    """Photos of noise; fetched and decoded by the loader's workers."""

    def __init__(self, count: int) -> None:
        self.pixels = np.random.default_rng(1).integers(0, 255, (count, 3, SIZE + 8, SIZE + 8), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return decode(self.pixels[index]), index % CLASSES


def decode(pixels: np.ndarray) -> torch.Tensor:
    image = torch.from_numpy(pixels.astype(np.float32) / 255.0)
    knobs.slow["decode"]()
    return image


def random_crop(image: torch.Tensor) -> torch.Tensor:
    top, left = torch.randint(0, 8, (2,)).tolist()
    knobs.slow["random_crop"]()
    return image[:, top : top + SIZE, left : left + SIZE]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.body = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64 * 16, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.body(F.relu(self.stem(images))))
        return self.head(F.adaptive_avg_pool2d(hidden, 4).flatten(1))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    counts = torch.zeros(2)
    for images, labels in loader:
        predictions = model(images[:, :, 4 : 4 + SIZE, 4 : 4 + SIZE]).argmax(1)
        counts += torch.tensor([(predictions == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    model.train()
    return float(counts[0] / counts[1])


def save_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    photos = Photos(2400)
    sampler = DistributedSampler(photos)
    loader = DataLoader(photos, args.batch_size, sampler=sampler, num_workers=2, persistent_workers=True)
    validation = DataLoader(Photos(64), 32)
    knobs.begin(args.out, rank)
    step = 0
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            crops = torch.stack([random_crop(image) for image in images])
            loss = F.cross_entropy(model(crops), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                logged = loss.detach().clone()
                dist.all_reduce(logged)
                if rank == 0:
                    print(f"step {step} loss {float(logged) / dist.get_world_size():.4f}", flush=True)
            if step % 100 == 0:
                accuracy = evaluate(model, validation)
                if rank == 0:
                    print(f"step {step} accuracy {accuracy:.3f}", flush=True)
            if step % 200 == 0:
                save_checkpoint(args.out / "checkpoint.pt", model, optimizer)
            knobs.step(step)


if __name__ == "__main__":
    main()
