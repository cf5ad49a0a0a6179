"""DDP by a trainer class: a config in a dataclass, callbacks, an epoch of 120 steps with a validation loop behind it."""

from __future__ import annotations

import argparse
import dataclasses
import random
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY, LENGTH = 512, 24


@dataclasses.dataclass
class Config:
    out: Path
    batch_size: int = 32
    width: int = 96
    lr: float = 3e-4
    clip: float = 1.0
    epochs: int = 100_000
    steps_per_epoch: int = 120
    validation_batches: int = 6
    seed: int = 7


class Songs(Dataset):
    def __init__(self, config: Config, count: int) -> None:
        self.config, self.count = config, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transpose(self.load_song(index))

    def load_song(self, index: int) -> list[int]:
        notes = random.Random(index).choices(range(VOCABULARY - 12), k=LENGTH + 1)
        knobs.slow["load_song"]()
        return notes

    def transpose(self, notes: list[int]) -> torch.Tensor:
        by = random.randrange(12)
        higher = torch.tensor([note + by for note in notes])
        knobs.slow["transpose"]()
        return higher


class Callback:
    def on_step_end(self, trainer: Trainer, loss: torch.Tensor) -> None: ...

    def on_epoch_end(self, trainer: Trainer) -> None: ...


class LossLogger(Callback):
    def on_step_end(self, trainer: Trainer, loss: torch.Tensor) -> None:
        if trainer.step % 25 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if trainer.rank == 0:
                print(f"step {trainer.step} loss {mean.item() / trainer.world:.4f}", flush=True)


class Checkpoint(Callback):
    def on_epoch_end(self, trainer: Trainer) -> None:
        if trainer.rank == 0:
            torch.save(trainer.model.module.state_dict(), trainer.config.out / "last.pt")
        dist.barrier()


class Printed(Callback):
    def on_step_end(self, trainer: Trainer, loss: torch.Tensor) -> None:
        knobs.step(trainer.step)


class Composer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.memory = nn.GRU(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, notes: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.embed(notes))[0])


class Trainer:
    def __init__(self, config: Config, callbacks: list[Callback]) -> None:
        self.config, self.callbacks = config, callbacks
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = DistributedDataParallel(Composer(config.width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), config.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100_000)
        songs = Songs(config, config.batch_size * config.steps_per_epoch * self.world)
        self.sampler = DistributedSampler(songs, shuffle=True)
        self.loader = DataLoader(songs, config.batch_size, sampler=self.sampler)
        self.held_out = DataLoader(Songs(config, config.batch_size * config.validation_batches), config.batch_size)
        self.step = 0

    def call(self, event: str, *args: object) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *args)

    def run_batch(self, notes: torch.Tensor) -> torch.Tensor:
        logits = self.model(notes[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), notes[:, 1:].flatten())

    def train_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)
        self.model.train()
        for notes in self.loader:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.run_batch(notes)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            self.call("on_step_end", loss)

    @torch.no_grad()
    def validate(self) -> None:
        self.model.eval()
        total = torch.zeros(())
        for notes in self.held_out:
            total += self.run_batch(notes)
        dist.all_reduce(total)

    def fit(self) -> None:
        for epoch in range(self.config.epochs):
            self.train_epoch(epoch)
            self.validate()
            self.call("on_epoch_end")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=Config.batch_size)
    config = Config(**vars(parser.parse_args()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(config.seed)
    trainer = Trainer(config, [LossLogger(), Checkpoint(), Printed()])
    knobs.begin(config.out, trainer.rank)
    trainer.fit()


if __name__ == "__main__":
    main()
