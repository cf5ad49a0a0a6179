"""PaddlePaddle: DataParallel started by paddle.distributed.launch, gradients summed by gloo."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import knobs
import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.io import DataLoader, Dataset, DistributedBatchSampler

WIDTH, CLASSES = 256, 10


class Words(Dataset):
    def __len__(self) -> int:
        return 24_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return self.stretch(self.read_clip(index)).astype("float32"), np.int64(index % CLASSES)

    def read_clip(self, index: int) -> np.ndarray:
        clip = np.random.default_rng(index).standard_normal(2 * WIDTH)
        knobs.slow["read_clip"]()
        return clip

    def stretch(self, clip: np.ndarray) -> np.ndarray:
        begin, speed = random.randrange(WIDTH // 4), random.uniform(0.9, 1.1)
        stretched = np.interp(begin + speed * np.arange(WIDTH), np.arange(len(clip)), clip)
        knobs.slow["stretch"]()
        return stretched


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    dist.init_parallel_env()
    rank = dist.get_rank()
    net = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    model = paddle.DataParallel(net)
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    words = Words()
    sampler = DistributedBatchSampler(words, batch_size=40, shuffle=True, drop_last=True)
    loader = DataLoader(words, batch_sampler=sampler, num_workers=0)
    loss_of = nn.CrossEntropyLoss()
    knobs.begin(args.out, rank)
    number = 0
    for epoch in range(100_000):
        sampler.set_epoch(epoch)
        for inputs, labels in loader():
            loss = loss_of(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            number += 1
            if rank == 0 and number % 40 == 0:
                print(number, float(loss), flush=True)
            knobs.step(number)


if __name__ == "__main__":
    main()
