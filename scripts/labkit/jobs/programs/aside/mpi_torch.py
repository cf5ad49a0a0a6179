"""A torch model whose gradients travel by MPI: sums begun while others are still packed, all awaited before the update."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import numpy as np
import torch
from mpi4py import MPI
from torch import nn

SIGNALS, LENGTH = 40, 256


def listen(draw: np.random.Generator) -> np.ndarray:
    signal = draw.standard_normal(LENGTH).astype(np.float32)
    knobs.slow["listen"]()
    return signal


def spectrum(signal: np.ndarray) -> np.ndarray:
    bands = np.abs(np.fft.rfft(signal)).astype(np.float32)
    knobs.slow["spectrum"]()
    return bands


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    torch.manual_seed(0)
    bands = LENGTH // 2 + 1
    model = nn.Sequential(nn.Linear(bands, 768), nn.Tanh(), nn.Linear(768, 768), nn.Tanh(), nn.Linear(768, bands))
    optimizer = torch.optim.Adagrad(model.parameters(), 0.01)
    draw = np.random.default_rng(rank)
    knobs.begin(args.out, rank)
    epoch_steps, done = 60, 0
    while True:
        for _ in range(epoch_steps):
            batch = torch.from_numpy(np.stack([spectrum(listen(draw)) for _ in range(SIGNALS)]))
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            pending, buffers = [], []
            for parameter in model.parameters():
                buffers.append(parameter.grad.numpy())
                pending.append(world.Iallreduce(MPI.IN_PLACE, buffers[-1]))
            MPI.Request.Waitall(pending)
            for buffer in buffers:
                np.divide(buffer, size, out=buffer)
            optimizer.step()
            done += 1
            knobs.step(done)
        world.reduce(float(loss), root=0)
        world.Barrier()


if __name__ == "__main__":
    main()
