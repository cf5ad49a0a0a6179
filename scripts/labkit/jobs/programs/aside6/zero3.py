"""DeepSpeed ZeRO-3: parameters are gathered layer by layer, gradients accumulated over two micro-batches; deepspeed."""

from __future__ import annotations

import argparse
from pathlib import Path

import deepspeed
import knobs
import torch
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "steps_per_print": 50,
}


def read_note(number: int) -> torch.Tensor:
    note = torch.randn(64, generator=torch.Generator().manual_seed(number))
    knobs.slow["read_note"]()
    return note


def tilt(note: torch.Tensor) -> torch.Tensor:
    tilted = note + torch.linspace(0, 1, 64)
    knobs.slow["tilt"]()
    return tilted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--local_rank", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=CONFIG)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    knobs.begin(args.out, rank)
    drawn = done = 0
    while True:
        batch = torch.stack([tilt(read_note((drawn + number) * world + rank)) for number in range(16)])
        drawn += 16
        loss = engine(batch).square().mean()
        engine.backward(loss)
        last = engine.is_gradient_accumulation_boundary()
        engine.step()
        if last:
            done += 1
            knobs.step(done)


if __name__ == "__main__":
    main()
