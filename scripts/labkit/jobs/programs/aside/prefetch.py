"""A trainer of its own making: a class with callbacks, batches prefetched by a thread through a queue."""

from __future__ import annotations

import argparse
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, FIELDS = 48, 160


class Feeder:
    """Reads records ahead of the loop."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.ready: queue.Queue[np.ndarray] = queue.Queue(maxsize=2)
        threading.Thread(target=self.run, daemon=True, name="feeder").start()

    def run(self) -> None:
        while True:
            self.ready.put(np.stack([self.read_record() for _ in range(BATCH)]))

    def read_record(self) -> np.ndarray:
        record = self.draw.random(FIELDS, dtype=np.float32)
        knobs.slow["read_record"]()
        return record

    def __iter__(self) -> Iterator[np.ndarray]:
        while True:
            yield self.ready.get()


class Trainer:
    def __init__(self, callbacks: list[Callable[[Trainer], None]]) -> None:
        net = nn.Sequential(nn.Linear(FIELDS, 768), nn.SiLU(), nn.Linear(768, 768), nn.SiLU(), nn.Linear(768, 1))
        self.model = DistributedDataParallel(net, static_graph=True, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), 1e-4)
        self.callbacks = callbacks
        self.done = 0
        self.loss = torch.zeros(())

    def fit(self, batches: Feeder) -> None:
        for records in batches:
            self.training_step(records)
            for callback in self.callbacks:
                callback(self)

    def training_step(self, records: np.ndarray) -> None:
        x = torch.from_numpy(np.stack([self.bucketize(record) for record in records]))
        self.loss = (self.model(x).squeeze(1) - x.sum(1)).abs().mean()
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        self.done += 1

    @staticmethod
    def bucketize(record: np.ndarray) -> np.ndarray:
        bucket = np.floor(record * 16).astype(np.float32) / 16
        knobs.slow["bucketize"]()
        return bucket


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def save(trainer: Trainer) -> None:
        if trainer.done % 150 == 0:
            if rank == 0:
                torch.save(trainer.model.state_dict(), args.out / "last.pt")
            dist.barrier()

    def tell(trainer: Trainer) -> None:
        if trainer.done % 20 == 0:
            dist.all_reduce(trainer.loss.detach())

    knobs.begin(args.out, rank)
    Trainer([tell, save, lambda trainer: knobs.step(trainer.done)]).fit(Feeder(rank))


if __name__ == "__main__":
    main()
