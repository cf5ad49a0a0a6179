"""Reinforcement learning with two roles: rank 0 learns, the other ranks act; weights go out and episodes come back."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

STATE, ACTIONS, EPISODE = 32, 4, 128


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, ACTIONS)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.net(states)


def read_level(draw: np.random.Generator) -> np.ndarray:
    level = draw.standard_normal(STATE).astype(np.float32)
    knobs.slow["read_level"]()
    return level


def simulate(state: np.ndarray, action: int, draw: np.random.Generator) -> np.ndarray:
    result = 0.9 * state + 0.1 * draw.standard_normal(STATE).astype(np.float32) + 0.01 * action
    knobs.slow["simulate"]()
    return result


@torch.no_grad()
def act(policy: Policy, draw: np.random.Generator) -> torch.Tensor:
    state, episode = read_level(draw), []
    for _ in range(EPISODE):
        action = int(policy(torch.from_numpy(state)).argmax())
        episode.append(np.append(state, np.float32(action)))
        state = simulate(state, action, draw)
    return torch.from_numpy(np.stack(episode))


def advantages(episodes: torch.Tensor) -> torch.Tensor:
    result = episodes[:, :STATE].mean(1)
    knobs.slow["advantages"]()
    return result


def learn(policy: Policy, optimizer: torch.optim.Optimizer, episodes: torch.Tensor) -> float:
    weight = advantages(episodes)
    for _ in range(8):
        loss = (
            F.cross_entropy(policy(episodes[:, :STATE]), episodes[:, STATE].long(), reduction="none") * weight
        ).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    draw = np.random.default_rng(rank)
    nothing = torch.zeros(EPISODE, STATE + 1)
    knobs.begin(args.out, rank)
    for step in itertools.count(1):
        for parameter in policy.parameters():
            dist.broadcast(parameter.data, 0)
        episode = act(policy, draw) if rank else nothing
        gathered = [torch.empty_like(nothing) for _ in range(world)] if rank == 0 else None
        dist.gather(episode, gathered, 0)
        if gathered:
            loss = learn(policy, optimizer, torch.cat(gathered[1:]))
            if step % 10 == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
