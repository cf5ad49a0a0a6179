"""pytorch-ignite: an Engine with handlers, started by idist.Parallel; evaluation and a mean over ranks now and then."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import ignite.distributed as idist
import knobs
import torch
from ignite.engine import Engine, Events
from ignite.metrics import RunningAverage
from torch import nn
from torch.utils.data import Dataset

SIDE, CLASSES = 24, 10


class Leaves(Dataset):
    def __len__(self) -> int:
        return 9600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.crop_leaf(self.load_leaf(index)), index % CLASSES

    def load_leaf(self, index: int) -> torch.Tensor:
        leaf = torch.rand(3, SIDE + 8, SIDE + 8, generator=torch.Generator().manual_seed(index))
        knobs.slow["load_leaf"]()
        return leaf

    def crop_leaf(self, leaf: torch.Tensor) -> torch.Tensor:
        top, left = random.randrange(8), random.randrange(8)
        cropped = leaf[:, top : top + SIDE, left : left + SIDE].flip(random.randrange(1, 3))
        knobs.slow["crop_leaf"]()
        return (cropped - cropped.mean()) / cropped.std()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(768, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


def training(local_rank: int, out: Path) -> None:
    torch.set_num_threads(1)
    rank = idist.get_rank()
    loader = idist.auto_dataloader(Leaves(), batch_size=48, shuffle=True, num_workers=0)
    model = idist.auto_model(make_model())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    loss_of = nn.CrossEntropyLoss()

    def update(engine: Engine, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        model.train()
        pictures, classes = batch
        optimizer.zero_grad()
        loss = loss_of(model(pictures), classes)
        loss.backward()
        optimizer.step()
        return loss.item()

    def assess(engine: Engine, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        model.eval()
        with torch.no_grad():
            return loss_of(model(batch[0]), batch[1]).item()

    trainer, evaluator = Engine(update), Engine(assess)
    RunningAverage(output_transform=float).attach(trainer, "loss")

    @trainer.on(Events.ITERATION_COMPLETED)
    def printed(engine: Engine) -> None:
        knobs.step(engine.state.iteration)

    @trainer.on(Events.ITERATION_COMPLETED(every=80))
    def held_out(engine: Engine) -> None:
        evaluator.run(loader, epoch_length=4)
        mean = idist.all_reduce(torch.tensor(evaluator.state.output)) / idist.get_world_size()
        if rank == 0:
            print(engine.state.iteration, float(mean), flush=True)

    knobs.begin(out, rank)
    trainer.run(loader, max_epochs=100_000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    with idist.Parallel(backend="gloo", nproc_per_node=args.workers, master_port=args.port) as parallel:
        parallel.run(training, args.out)


if __name__ == "__main__":
    main()
