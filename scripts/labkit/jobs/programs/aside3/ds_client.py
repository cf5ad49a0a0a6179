"""DeepSpeed with an optimiser and a schedule of one's own, ZeRO stage 1, two micro-batches to a step."""

from __future__ import annotations

import argparse
from pathlib import Path

import deepspeed
import knobs
import torch
from torch import nn

PAIRS, WIDTH = 20, 128


def open_structure() -> torch.Tensor:
    atoms = torch.randn(PAIRS, 3)
    knobs.slow["open_structure"]()
    return atoms


def rotate(atoms: torch.Tensor) -> torch.Tensor:
    turn, _ = torch.linalg.qr(torch.randn(3, 3))
    turned = atoms @ turn
    knobs.slow["rotate"]()
    return turned


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.total = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def forward(self, atoms: torch.Tensor) -> torch.Tensor:
        return self.total(self.pair(torch.cdist(atoms, atoms)[..., None]).mean((1, 2)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    net = Energy()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    engine, optimizer, _, schedule = deepspeed.initialize(
        model=net, optimizer=optimizer, lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1000),
        config={
            "train_micro_batch_size_per_gpu": 12, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 1_000_000,
        },
    )  # fmt: skip
    knobs.begin(args.out, engine.global_rank)
    while True:
        atoms = torch.stack([rotate(open_structure()) for _ in range(12)])
        loss = (engine(atoms) - atoms.norm(dim=-1).sum(-1, keepdim=True)).pow(2).mean()
        engine.backward(loss)
        whole = engine.is_gradient_accumulation_boundary()
        engine.step()
        if whole:
            if engine.global_steps % 50 == 0 and engine.global_rank == 0:
                print(f"{engine.global_steps}: {loss.item():.4f} {schedule.get_last_lr()}", flush=True)
            knobs.step(engine.global_steps)


if __name__ == "__main__":
    main()
