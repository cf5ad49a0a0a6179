"""Lightning with a DataModule, gradients of four batches accumulated, a validation every 60 batches, a gradient norm logged."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SENSORS, HISTORY = 24, 48


class Readings(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        readings = fill_gaps(query_sensor(index))
        return torch.from_numpy(readings[:-1]), torch.from_numpy(readings[-1])


def query_sensor(index: int) -> np.ndarray:
    readings = np.random.default_rng(index).standard_normal((HISTORY + 1, SENSORS)).cumsum(0)
    knobs.slow["query_sensor"]()
    return readings.astype(np.float32)


def fill_gaps(readings: np.ndarray) -> np.ndarray:
    gaps = np.abs(readings) > 20
    readings[gaps] = 0.0
    knobs.slow["fill_gaps"]()
    return readings


class Plant(L.LightningDataModule):
    def __init__(self, batch: int = 16) -> None:
        super().__init__()
        self.batch = batch

    def setup(self, stage: str) -> None:
        self.train, self.held_out = Readings(96_000), Readings(128)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, self.batch, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.held_out, self.batch)


class Forecast(L.LightningModule):
    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(SENSORS * HISTORY, width), nn.SiLU(), nn.Linear(width, width),
                                 nn.SiLU(), nn.Linear(width, SENSORS))  # fmt: skip

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        return self.net(past)

    def shared_step(self, batch: tuple[torch.Tensor, torch.Tensor], stage: str) -> torch.Tensor:
        past, future = batch
        loss = nn.functional.huber_loss(self(past), future)
        self.log(f"{stage}/loss", loss, sync_dist=stage == "val")
        return loss

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        return self.shared_step(batch, "train")

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        return self.shared_step(batch, "val")

    def on_before_optimizer_step(self, _: object) -> None:
        self.log("norm", torch.stack([part.grad.norm() for part in self.parameters() if part.grad is not None]).norm())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Printed(L.Callback):
    def __init__(self, out: Path) -> None:
        self.out, self.told = out, 0

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        torch.set_num_threads(1)
        knobs.begin(self.out, trainer.global_rank)

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.global_step > self.told:
            self.told = trainer.global_step
            knobs.step(self.told)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=2)
    args = parser.parse_args()
    L.seed_everything(3)
    trainer = L.Trainer(
        accelerator="cpu", devices=args.devices, strategy="ddp", max_epochs=-1, accumulate_grad_batches=4,
        val_check_interval=60, gradient_clip_val=1.0, logger=False, enable_progress_bar=False, enable_checkpointing=False,
        log_every_n_steps=10, callbacks=[Printed(args.out)], default_root_dir=args.out,
    )  # fmt: skip
    trainer.fit(Forecast(), datamodule=Plant())


if __name__ == "__main__":
    main()
