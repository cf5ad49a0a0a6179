"""Two networks, two optimisers: the discriminator and the generator are updated by turns within one iteration."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

NOISE, PIXELS = 64, 400


class Faces(Dataset):
    def __len__(self) -> int:
        return 6400

    def __getitem__(self, index: int) -> np.ndarray:
        return flip(read_face(index))


def read_face(index: int) -> np.ndarray:
    face = np.random.default_rng(index).random(PIXELS, dtype=np.float32)
    knobs.slow["read_face"]()
    return face


def flip(face: np.ndarray) -> np.ndarray:
    flipped = face.reshape(20, 20)[:, ::-1].reshape(-1).copy()
    knobs.slow["flip"]()
    return flipped


def dense(*sizes: int) -> DistributedDataParallel:
    layers = [part for one, two in itertools.pairwise(sizes) for part in (nn.Linear(one, two), nn.LeakyReLU(0.2))]
    return DistributedDataParallel(nn.Sequential(*layers[:-1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    generator, critic = dense(NOISE, 512, 512, PIXELS), dense(PIXELS, 512, 256, 1)
    of_generator = torch.optim.Adam(generator.parameters(), 2e-4)
    of_critic = torch.optim.Adam(critic.parameters(), 2e-4)
    real, fake = torch.ones(32, 1), torch.zeros(32, 1)
    loader = DataLoader(Faces(), 32, shuffle=True, drop_last=True)
    knobs.begin(args.out, dist.get_rank())
    number = 0
    for _ in itertools.count():
        for faces in loader:
            made = generator(torch.randn(32, NOISE))
            of_critic.zero_grad()
            (bce(critic(faces), real) + bce(critic(made.detach()), fake)).backward()
            of_critic.step()
            of_generator.zero_grad()
            bce(critic(made), real).backward()
            of_generator.step()
            number += 1
            if number % 200 == 0:
                dist.barrier()
            knobs.step(number)


if __name__ == "__main__":
    main()
