"""Ray Train whose workers iterate over a data set of Ray Data; each makes tensors of what it gets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import ray
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))
import knobs

FEATURES, BATCH = 64, 256


def decode_block(block: dict[str, np.ndarray]) -> torch.Tensor:
    rows = np.random.default_rng(int(block["id"][0])).standard_normal((len(block["id"]), FEATURES), dtype=np.float32)
    knobs.slow["decode_block"]()
    return torch.from_numpy(rows)


def add_crosses(rows: torch.Tensor) -> torch.Tensor:
    crosses = torch.einsum("bi,bj->bij", rows[:, :16], rows[:, 16:32]).flatten(1)
    knobs.slow["add_crosses"]()
    return torch.cat([rows, crosses], 1)


def train_func(config: dict[str, str]) -> None:
    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    net = nn.Sequential(nn.Linear(FEATURES + 256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
    net = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.01)
    shard = ray.train.get_dataset_shard("train")
    knobs.begin(config["out"], rank)
    done = 0
    for epoch in range(10_000):
        for rows in shard.iter_torch_batches(
            batch_size=BATCH, collate_fn=decode_block, prefetch_batches=1, drop_last=True
        ):
            loss = (net(add_crosses(rows))[:, 0] - rows[:, 0]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            knobs.step(done)
        ray.train.report({"loss": loss.item(), "epoch": epoch})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    programs = str(Path(__file__).parent.parent)
    ray.init(num_cpus=args.workers + 2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": programs}})
    ray.train.torch.TorchTrainer(
        train_func,
        train_loop_config={"out": args.out},
        datasets={"train": ray.data.range(5_000_000, override_num_blocks=8)},
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(name="crosses", storage_path=f"{args.out}/ray"),
    ).fit()


if __name__ == "__main__":
    main()
