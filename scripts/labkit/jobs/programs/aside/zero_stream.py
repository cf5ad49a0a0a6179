"""Regression on a stream: DDP, ZeroRedundancyOptimizer, clipped gradients, a loss reduced to rank 0 every 25 steps."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Sensors(IterableDataset):
    """Endless readings; smoothed where they are read."""

    def __init__(self, channels: int, samples: int) -> None:
        self.channels, self.samples = channels, samples

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            signal = self.receive()
            yield self.smooth(signal), signal.mean(1)

    def receive(self) -> torch.Tensor:
        signal = torch.randn(self.channels, self.samples)
        knobs.slow["receive"]()
        return signal

    def smooth(self, signal: torch.Tensor) -> torch.Tensor:
        result = torch.nn.functional.avg_pool1d(signal[None], 5, stride=1, padding=2)[0]
        knobs.slow["smooth"]()
        return result


class Runner:
    def __init__(self, out: Path) -> None:
        self.rank = dist.get_rank()
        # Two equal layers: each rank's optimizer keeps one of them.
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(16 * 64, 640), nn.GELU(), nn.Linear(640, 16 * 64), nn.Linear(16 * 64, 16)
        )
        self.net = DistributedDataParallel(net, bucket_cap_mb=1)
        self.optimizer = ZeroRedundancyOptimizer(self.net.parameters(), optim.AdamW, lr=1e-3)
        self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 1000)
        self.batches = iter(DataLoader(Sensors(16, 64), batch_size=48))
        knobs.begin(out, self.rank)

    def one(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        readings, targets = next(self.batches)
        loss = ((self.net(readings) - targets) ** 2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def run(self) -> None:
        done = 0
        while True:
            loss = self.one()
            done += 1
            if done % 25 == 0:
                dist.reduce(loss, 0)
                if self.rank == 0:
                    print(f"{done}: {loss.item():.4f}", flush=True)
            knobs.step(done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Runner(parser.parse_args().out).run()


if __name__ == "__main__":
    main()
