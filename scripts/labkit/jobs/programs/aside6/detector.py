"""A trainer that starts torchrun on a file it wrote itself, as YOLO's does; short epochs, loss of several scales, a moving average."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIDE, BATCH = 32, 16


def load_image(number: int) -> torch.Tensor:
    image = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(number))
    knobs.slow["load_image"]()
    return image


def mosaic(image: torch.Tensor) -> torch.Tensor:
    half = image[:, ::2, ::2]
    tiled = torch.cat([torch.cat([half, half], 2), torch.cat([half, half], 2)], 1)
    knobs.slow["mosaic"]()
    return tiled


class Images(Dataset):
    def __len__(self) -> int:
        return 20 * BATCH * 2

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return mosaic(load_image(number)), torch.rand(4)


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.SiLU())
        self.heads = nn.ModuleList([nn.Conv2d(12, 4, 1), nn.Conv2d(24, 4, 1)])

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        fine = self.stem(images)
        return [self.heads[0](fine), self.heads[1](self.deep(fine))]


class Trainer:
    def __init__(self, out: Path) -> None:
        self.out = out

    def train(self) -> None:
        if "LOCAL_RANK" not in os.environ:
            self.start_ranks()
            return
        self.setup()
        self.do_train()

    def start_ranks(self) -> None:
        script = self.out / "temporary_ddp.py"
        script.write_text(
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
            f"from pathlib import Path\nfrom aside6.detector import Trainer\nTrainer(Path({str(self.out)!r})).train()\n"
        )
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            os.environ["DEVICES"],
            "--master_port",
            os.environ["PORT"],
            str(script),
        ]
        subprocess.run(command, check=True)

    def setup(self) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.model = DistributedDataParallel(Detector())
        self.average = deepcopy(self.model.module).eval()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
        images = Images()
        knobs.follow(self.out, dist.get_rank())
        self.sampler = DistributedSampler(images)
        self.loader = DataLoader(images, BATCH, sampler=self.sampler, num_workers=1, persistent_workers=True)

    def do_train(self) -> None:
        rank = dist.get_rank()
        knobs.begin(self.out, rank)
        done = 0
        for epoch in range(100_000):
            self.sampler.set_epoch(epoch)
            self.model.train()
            for images, boxes in self.loader:
                outputs = self.model(images)
                loss = sum((each.mean((2, 3)) - boxes).abs().mean() for each in outputs)
                loss.backward()
                self.optimizer_step()
                done += 1
                knobs.step(done)
            stop = [False if rank == 0 else None]
            dist.broadcast_object_list(stop, 0)

    def optimizer_step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for kept, now in zip(
                self.average.state_dict().values(), self.model.module.state_dict().values(), strict=True
            ):
                if kept.dtype.is_floating_point:
                    kept.mul_(0.999).add_(now, alpha=0.001)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", required=True)
    parser.add_argument("--port", required=True)
    args = parser.parse_args()
    os.environ["DEVICES"], os.environ["PORT"] = args.devices, args.port
    Trainer(args.out).train()


if __name__ == "__main__":
    main()
