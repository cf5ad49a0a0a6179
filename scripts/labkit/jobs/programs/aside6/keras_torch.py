"""A model of Keras 3 on PyTorch, wrapped for data parallelism as Keras's guide says; processes started by torch.multiprocessing."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import knobs
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIDE = 20


def read_digit(number: int) -> np.ndarray:
    digit = np.random.default_rng(number).random((SIDE, SIDE, 1), dtype=np.float32)
    knobs.slow["read_digit"]()
    return digit


def rotate(digit: np.ndarray) -> np.ndarray:
    turned = np.rot90(digit, 1).copy()
    knobs.slow["rotate"]()
    return turned


class Digits(Dataset):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return rotate(read_digit(number)), number % 10


def get_model() -> keras.Model:
    inputs = keras.Input((SIDE, SIDE, 1))
    hidden = keras.layers.Conv2D(12, 3, strides=2, activation="relu")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Flatten()(hidden)
    return keras.Model(inputs, keras.layers.Dense(10)(hidden))


def train_model(model, dataloader, epochs: int, optimizer, loss_fn) -> None:
    done = 0
    for _ in range(epochs):
        for inputs, targets in dataloader:
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            knobs.step(done)


def per_device_launch_fn(rank: int, world: int, port: int, out: Path) -> None:
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    dataset = Digits()
    dataloader = DataLoader(dataset, sampler=DistributedSampler(dataset, world, rank, shuffle=False), batch_size=32)
    model = get_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    knobs.begin(out, rank)
    train_model(DistributedDataParallel(model), dataloader, 1_000, optimizer, torch.nn.CrossEntropyLoss())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args()
    torch.multiprocessing.start_processes(
        per_device_launch_fn,
        args=(args.workers, args.port, args.out),
        nprocs=args.workers,
        join=True,
        start_method="fork",
    )


if __name__ == "__main__":
    main()
