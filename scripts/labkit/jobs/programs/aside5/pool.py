"""Ranks that are workers of a ProcessPoolExecutor and meet by a file; no environment says who they are."""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel

FRAMES, BINS = 48, 40


def record(number: int) -> torch.Tensor:
    sound = torch.randn(FRAMES * BINS, generator=torch.Generator().manual_seed(number))
    knobs.slow["record"]()
    return sound


def spectrogram(sound: torch.Tensor) -> torch.Tensor:
    frames = sound.view(FRAMES, BINS) * torch.hann_window(BINS)
    knobs.slow["spectrogram"]()
    return torch.fft.rfft(frames).abs().log1p()


def fit(rank: int, world: int, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=world)
    net = nn.LSTM(BINS // 2 + 1, 64, batch_first=True)
    model = Parallel(net)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    knobs.begin(out, rank)
    done = 0
    while True:
        sounds = range(rank + done * 32 * world, rank + (done + 1) * 32 * world, world)
        inputs = torch.stack([spectrogram(record(sound)) for sound in sounds])
        optimizer.zero_grad(set_to_none=True)
        predicted, _ = model(inputs)
        loss = (predicted[:, :-1, : BINS // 2] - inputs[:, 1:, : BINS // 2]).abs().mean()
        loss.backward()
        optimizer.step()
        done += 1
        knobs.step(done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, required=True)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as workers:
        running = [workers.submit(fit, rank, args.processes, args.out) for rank in range(args.processes)]
        for each in running:
            each.result()


if __name__ == "__main__":
    main()
