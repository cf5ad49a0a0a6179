"""A training job for a real GPU whose faults are switched on while it runs. It knows nothing of rankscope.

One rank, started with the environment that torchrun sets. Each step: crop a batch on the host, copy it, forward, backward
with DDP's all-reduces, optimizer, loss.item(). Before each step a rank reads FILE.fault: 'RANK KIND SECONDS'. FILE.rank<N>
gets the instant of CLOCK_MONOTONIC at which each step began.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rank import End, Switch, run
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_WIDTH = 1024
_LAYERS = 6
_FRAMES = 24


class Residual(nn.Module):  # type: ignore[misc]
    """A layer that keeps what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        return values + torch.relu(self.linear(values))


def crop_frames(frames: NDArray[np.float32], rounds: int, seconds: float) -> NDArray[np.float32]:
    """Each frame from another corner, as augmentation does; at least `rounds` of them, and for at least so long."""
    rows: list[NDArray[np.float32]] = []
    until = time.perf_counter() + seconds
    while len(rows) < rounds or time.perf_counter() < until:
        number = len(rows)
        rows.append(np.roll(frames[number % len(frames)], (number * 7) % 16, axis=0))
    return np.stack(rows[:rounds])


def read_shard(seconds: float) -> None:
    """What a slow shared file system does to whoever reads from it."""
    time.sleep(seconds)


def wait_for_lock(switch: Path) -> None:
    """What another thread holds until the switch is turned off."""
    lock = threading.Lock()
    lock.acquire()
    while switch.read_text():
        lock.acquire(timeout=2.0)


def load_batch(frames: NDArray[np.float32], size: int, switch: Path, kind: str, seconds: float) -> Tensor:
    """A batch on the host; the faults of hosts are here."""
    if kind == "loader":
        read_shard(seconds)
    elif kind == "stuck":
        wait_for_lock(switch)
    rows = crop_frames(frames, _FRAMES, seconds if kind == "python" else 0.0)
    return torch.from_numpy(np.resize(rows, (size, _WIDTH)))


def extra_products(values: Tensor, seconds: float) -> None:
    """Kernels that nobody else runs, until the GPU has worked on them for so long."""
    until = time.perf_counter() + seconds
    square = values.new_ones((4096, 4096))
    while time.perf_counter() < until:
        square = square @ square * 1e-4
        torch.cuda.synchronize()


def upload_volume(device: torch.device, seconds: float) -> None:
    """Copies from ordinary memory of what nobody else copies, for so long."""
    until = time.perf_counter() + seconds
    volume = torch.empty(8 << 20)
    while time.perf_counter() < until:
        volume.to(device)


def train(file: Path, size: int, until: float, rank: int, device: torch.device) -> None:
    model = DistributedDataParallel(
        nn.Sequential(*(Residual() for _ in range(_LAYERS))).to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    frames = np.random.default_rng(rank).standard_normal((_FRAMES, _WIDTH)).astype(np.float32)
    end, switch = End(until, device), Switch(file, rank)
    with Path(f"{file}.rank{rank}").open("w", buffering=1) as account:
        step = 0
        while True:
            account.write(f"{time.monotonic():.6f}\n")
            kind, seconds = switch.now()
            batch = load_batch(frames, size, switch.path, kind, seconds).to(device, non_blocking=True)
            if kind == "kernel":
                extra_products(batch, seconds)
            elif kind == "upload":
                upload_volume(device, seconds)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            step += 1
            if end.reached(step):
                return


if __name__ == "__main__":
    run(train, 2048)
