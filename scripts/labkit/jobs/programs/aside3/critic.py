"""A Wasserstein GAN by mp.spawn: the critic is updated three times, the generator once; each has its optimiser."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NOISE, SIGNAL, BATCH, CRITIC_STEPS = 32, 256, 24, 3


def record_signal() -> torch.Tensor:
    signal = torch.cumsum(torch.randn(SIGNAL), 0)
    knobs.slow["record_signal"]()
    return signal


def detrend(signal: torch.Tensor) -> torch.Tensor:
    straight = signal - torch.linspace(float(signal[0]), float(signal[-1]), SIGNAL)
    knobs.slow["detrend"]()
    return straight


def real_batch() -> torch.Tensor:
    return torch.stack([detrend(record_signal()) for _ in range(BATCH)])


def penalty(critic: nn.Module, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    between = torch.lerp(real, fake, torch.rand(BATCH, 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).pow(2).mean()


def worker(rank: int, world: int, port: int, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    generator = DistributedDataParallel(
        nn.Sequential(nn.Linear(NOISE, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, SIGNAL))
    )
    critic = DistributedDataParallel(
        nn.Sequential(
            nn.Linear(SIGNAL, 512), nn.LeakyReLU(0.2), nn.Linear(512, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)
        )
    )
    of_generator = torch.optim.RMSprop(generator.parameters(), 5e-5)
    of_critic = torch.optim.RMSprop(critic.parameters(), 5e-5)
    knobs.begin(out, rank)
    done = 0
    while True:
        for _ in range(CRITIC_STEPS):
            real = real_batch()
            with torch.no_grad():
                fake = generator(torch.randn(BATCH, NOISE))
            of_critic.zero_grad()
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic.module, real, fake)
            loss.backward()
            of_critic.step()
        of_generator.zero_grad()
        cost = -critic(generator(torch.randn(BATCH, NOISE))).mean()
        cost.backward()
        of_generator.step()
        done += 1
        if done % 50 == 0 and rank == 0:
            print(f"iteration {done}: critic {loss.item():.3f} generator {cost.item():.3f}", flush=True)
        knobs.step(done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(worker, (args.workers, args.port, args.out), args.workers)


if __name__ == "__main__":
    main()
