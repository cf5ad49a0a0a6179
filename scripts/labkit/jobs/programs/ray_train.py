"""Ray Train on a local cluster: a TorchTrainer with two or more workers."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import ray
import ray.train.torch
import torch
import torch.nn.functional as F
from ray.train import RunConfig, ScalingConfig
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import knobs

FEATURES, CLASSES = 256, 16


def read_row() -> torch.Tensor:
    row = torch.randn(FEATURES)
    knobs.slow["read_row"]()
    return row


def augment(row: torch.Tensor) -> torch.Tensor:
    result = row + 0.1 * torch.randn(FEATURES)
    knobs.slow["augment"]()
    return result


def train_loop(config: dict[str, str]) -> None:
    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    model = nn.Sequential(
        nn.Linear(FEATURES, 1536), nn.ReLU(), nn.Linear(1536, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)
    )
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    knobs.begin(config["out"], rank)
    for step in itertools.count(1):
        rows = torch.stack([augment(read_row()) for _ in range(64)])
        loss = F.cross_entropy(model(rows), rows[:, :CLASSES].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            ray.train.report({"loss": loss.item()})
        knobs.step(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    # The folder for Ray's sockets must have a short name.
    programs = str(Path(__file__).parent)
    ray.init(num_cpus=args.workers + 1, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": programs}})
    trainer = ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config={"out": args.out},
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(storage_path=f"{args.out}/ray"),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
