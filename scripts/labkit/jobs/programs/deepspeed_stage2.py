"""DeepSpeed, ZeRO stage 2, on CPU."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import deepspeed
import knobs
import torch
import torch.nn.functional as F
from torch import nn

FEATURES, CLASSES, BATCH = 256, 16, 64
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 1_000_000,
}


def read_row() -> torch.Tensor:
    row = torch.randn(FEATURES)
    knobs.slow["read_row"]()
    return row


def augment(row: torch.Tensor) -> torch.Tensor:
    result = row + 0.1 * torch.randn(FEATURES)
    knobs.slow["augment"]()
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed()
    model = nn.Sequential(
        nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, CLASSES)
    )
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    knobs.begin(args.out, torch.distributed.get_rank())
    for step in itertools.count(1):
        rows = torch.stack([augment(read_row()) for _ in range(BATCH)])
        loss = F.cross_entropy(engine(rows), rows[:, :CLASSES].argmax(1))
        engine.backward(loss)
        engine.step()
        if step % 10 == 0 and torch.distributed.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
