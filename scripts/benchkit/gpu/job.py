"""A training job for a real GPU: PyTorch DDP, as anybody would write it. It knows nothing of rankscope.

One rank, started with the environment that torchrun sets. Each step: copy a batch to the device, forward, backward with DDP's
all-reduces, optimizer, and loss.item(), which waits for all of it. The batch is chosen at the start, the same for all
ranks, so that computing takes `--step-ms` on this device with all ranks at it.

FILE.rank<N> gets one line per step, the job's own account (STEP_COLUMNS): instants by CLOCK_MONOTONIC, those on the device
from CUDA events, laid on the host's clock by the last one, which is when loss.item() returns; without CUDA, the host's.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rank import End, device_of_rank
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

# began: the host begins the step; started: the device its first kernel; computed: gradients complete;
# exchanged: and averaged over the ranks; done: optimizer.
STEP_COLUMNS = ("began", "started", "computed", "exchanged", "done")
SIDE = 32  # pixels
CLASSES = 100
_FIRST_BATCH = 4
_LARGEST_BATCH = 32768
_STEPS_TO_CALIBRATE = 3


class Network(nn.Module):  # type: ignore[misc]
    """Convolutions and linear layers: much to compute, 14 MB of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.features = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(128 * 16, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(self.first(images)))
        return scores


class Marks:
    """Instants of a step on the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)] if self._on_gpu else []
        self._times = [0.0] * 4

    def set(self, which: int) -> None:
        if self._on_gpu:
            self._events[which].record()
        self._times[which] = time.monotonic()

    def by_host(self, end: float) -> list[float]:
        """Seconds of CLOCK_MONOTONIC; `end`: when the host knew the last one to be over."""
        if not self._on_gpu:
            return self._times
        self._events[-1].synchronize()
        return [end - event.elapsed_time(self._events[-1]) / 1e3 for event in self._events]


def batch_of(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """On the host, in pinned memory where there is a GPU."""
    images, labels = torch.randn(size, 3, SIDE, SIDE), torch.randint(0, CLASSES, (size,))
    return (images.pin_memory(), labels.pin_memory()) if device.type == "cuda" else (images, labels)


def calibrated_batch(network: nn.Module, loss_of: nn.Module, device: torch.device, wanted_s: float) -> int:
    """Samples that take `wanted_s` forward and backward, all ranks at it; the same on all of them."""
    size, seconds = _FIRST_BATCH, 0.0
    while True:
        images, labels = (part.to(device) for part in batch_of(size, device))
        dist.barrier()
        for step in range(_STEPS_TO_CALIBRATE + 1):
            if step == 1:  # the first one loads kernels
                began = time.monotonic()
            loss_of(network(images), labels).backward()
            network.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
        slowest = torch.tensor([(time.monotonic() - began) / _STEPS_TO_CALIBRATE])
        if dist.get_backend() == "nccl":
            slowest = slowest.to(device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds = float(slowest.item())
        if seconds >= wanted_s / 4 or size >= _LARGEST_BATCH:
            return max(1, min(int(size * wanted_s / seconds), _LARGEST_BATCH))
        size = min(size * 4, _LARGEST_BATCH)


def train(args: argparse.Namespace, rank: int, device: torch.device) -> None:
    network = Network().to(device)
    loss_of = nn.CrossEntropyLoss()
    size = calibrated_batch(network, loss_of, device, args.step_ms / 1e3)
    images, labels = batch_of(size, device)
    on_device = torch.empty_like(images, device=device)
    model = DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    marks = Marks(device)
    # The first layer's gradient is the last to be complete.
    network.first.weight.register_post_accumulate_grad_hook(lambda _: marks.set(1))
    end = End(time.monotonic() + args.seconds, device if dist.get_backend() == "nccl" else torch.device("cpu"))
    with Path(f"{args.file}.rank{rank}").open("w", buffering=1) as file:
        step = 0
        while True:
            began = time.monotonic()
            marks.set(0)
            on_device.copy_(images, non_blocking=True)
            loss = loss_of(model(on_device), labels.to(device, non_blocking=True))
            loss.backward()
            marks.set(2)
            optimizer.step()
            optimizer.zero_grad()
            marks.set(3)
            figure = loss.item()
            file.write(f"{began:.6f} {' '.join(f'{at:.6f}' for at in marks.by_host(time.monotonic()))}\n")
            if rank == 0 and step % 100 == 0:
                print(f"step {step} batch {size} loss {figure:.4f}", flush=True)
            step += 1
            if end.reached(step):
                return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--step-ms", type=float, default=80.0)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    rank, device = int(os.environ["RANK"]), device_of_rank(args.device == "cuda")
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(args.backend)
    train(args, rank, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
