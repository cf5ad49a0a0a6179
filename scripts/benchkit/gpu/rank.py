"""What ranks of these trainings share: the device, the switch of their faults, the end. It knows nothing of rankscope.

The trainings are started as scripts, with the environment that torchrun sets, and import this as what lies beside them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

_EVERY_STEPS = 50


def device_of_rank(cuda: bool) -> torch.device:
    """The GPU of this rank, several of them one where there are not as many; else the CPUs."""
    if not cuda:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class Switch:
    """What is wrong with this rank now, and for how many seconds. FILE.fault says 'RANK KIND SECONDS', or nothing."""

    def __init__(self, file: Path, rank: int) -> None:
        self.path, self._rank = Path(f"{file}.fault"), rank

    def now(self) -> tuple[str, float]:
        """Kind and seconds; '' and 0 where nothing is wrong with this rank."""
        try:
            who, kind, seconds = self.path.read_text().split()
        except (OSError, ValueError):
            return "", 0.0
        return (kind, float(seconds)) if int(who) == self._rank else ("", 0.0)

    def seconds(self, kind: str) -> float:
        """0 where that is not wrong."""
        found, seconds = self.now()
        return seconds if found == kind else 0.0


class End:
    """All ranks stop after the same step, once rank 0 finds that `until` (CLOCK_MONOTONIC) is over."""

    def __init__(self, until: float, device: torch.device) -> None:
        self._until, self._going_on = until, torch.ones(1, device=device)

    def reached(self, steps: int) -> bool:
        """After so many steps."""
        if steps % _EVERY_STEPS:
            return False
        self._going_on.fill_(float(time.monotonic() < self._until))
        dist.broadcast(self._going_on, src=0)
        return not self._going_on.item()


def run(train: Callable[[Path, int, float, int, torch.device], None], batch: int) -> None:
    """Run a training whose faults can be switched on: file, batch, end (CLOCK_MONOTONIC), rank, device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="nccl")
    args = parser.parse_args()
    rank, device = int(os.environ["RANK"]), device_of_rank(torch.cuda.is_available())
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(args.backend)
    train(args.file, args.batch, time.monotonic() + args.seconds, rank, device)
    dist.destroy_process_group()
