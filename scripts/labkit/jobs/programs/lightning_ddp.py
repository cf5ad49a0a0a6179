"""A Lightning module trained with the Trainer's own launcher (ddp, ddp_spawn)."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, SIZE = 10, 28


class Digits(Dataset):
    def __init__(self, count: int) -> None:
        self.pixels = np.random.default_rng(1).integers(0, 255, (count, SIZE, SIZE), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return decode(self.pixels[index]), index % CLASSES


def decode(pixels: np.ndarray) -> torch.Tensor:
    image = torch.from_numpy(pixels.astype(np.float32) / 255.0)[None]
    knobs.slow["decode"]()
    return image


def random_shift(image: torch.Tensor) -> torch.Tensor:
    shifted = torch.roll(image, torch.randint(-3, 4, (2,)).tolist(), dims=(1, 2))
    knobs.slow["random_shift"]()
    return shifted


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, CLASSES),
        )  # fmt: skip

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        images = torch.stack([random_shift(image) for image in images])
        loss = F.cross_entropy(self.net(images), labels)
        self.log("loss", loss, prog_bar=False)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        images, labels = batch
        accuracy = (self.net(images).argmax(1) == labels).float().mean()
        self.log("accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class StepTimes(L.Callback):
    def __init__(self, out: Path) -> None:
        self.out = out

    def setup(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        knobs.follow(self.out, trainer.global_rank)

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        torch.set_num_threads(1)
        knobs.begin(self.out, trainer.global_rank)

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        knobs.step(trainer.global_step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--strategy", default="ddp")
    args = parser.parse_args()
    trainer = L.Trainer(
        accelerator="cpu", devices=args.devices, strategy=args.strategy, max_epochs=-1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, callbacks=[StepTimes(args.out)], val_check_interval=100,
        limit_val_batches=4, default_root_dir=args.out,
    )  # fmt: skip
    loader = DataLoader(Digits(9600), 32, shuffle=True, num_workers=1, persistent_workers=True)
    trainer.fit(Classifier(), loader, DataLoader(Digits(256), 32))


if __name__ == "__main__":
    main()
