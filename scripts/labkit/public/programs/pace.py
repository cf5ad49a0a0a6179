"""What each program of the suite writes of itself, and the sizes that it is told: OUT/rank<N>.lines, one line per step, `wall seconds`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

OUT, FAULT, SEED = Path(sys.argv[1]), sys.argv[2] == "fault", int(sys.argv[3])
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
LONGEST_S = 240  # nothing of the suite trains longer, whatever becomes of who started it


def begin() -> None:
    """Join the others, if there are any."""
    signal.alarm(LONGEST_S)
    torch.manual_seed(SEED)
    if RANKS > 1:
        dist.init_process_group("gloo")


def wrapped(model: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(model) if RANKS > 1 else model


class Pace:
    """Call it at the end of each step."""

    def __init__(self) -> None:
        self._file = (OUT / f"rank{RANK}.lines").open("w", buffering=1)
        self._last = time.time()
        self.steps = 0

    def __call__(self) -> None:
        now = time.time()
        self._file.write(f"{now:.6f} {now - self._last:.6f}\n")
        self._last, self.steps = now, self.steps + 1
