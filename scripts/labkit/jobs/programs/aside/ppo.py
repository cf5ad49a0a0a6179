"""Proximal policy optimisation: an iteration plays episodes, then makes eight updates from them; it prints iterations."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STATE, ACTIONS, HORIZON = 24, 4, 96


class Game:
    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.state = np.zeros(STATE, dtype=np.float32)

    def advance(self, action: int) -> float:
        self.state = np.tanh(self.state + 0.1 * (action - 1.5) + 0.1 * self.draw.standard_normal(STATE)).astype(
            np.float32
        )
        knobs.slow["advance"]()
        return float(self.state.mean())

    def observe(self) -> torch.Tensor:
        seen = torch.from_numpy(self.state.copy())
        knobs.slow["observe"]()
        return seen


@torch.no_grad()
def play(policy: nn.Module, game: Game) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    states, actions, rewards = [], [], []
    for _ in range(HORIZON):
        states.append(game.observe())
        actions.append(int(torch.distributions.Categorical(logits=policy(states[-1])).sample()))
        rewards.append(game.advance(actions[-1]))
    return torch.stack(states), torch.tensor(actions), torch.tensor(rewards)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    policy = nn.Sequential(nn.Linear(STATE, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, ACTIONS))
    parallel = DistributedDataParallel(policy)
    optimizer = torch.optim.Adam(parallel.parameters(), 3e-4)
    game = Game(dist.get_rank())
    knobs.begin(args.out, dist.get_rank())
    iteration = 0
    while True:
        states, actions, rewards = play(policy, game)
        gains = rewards.flip(0).cumsum(0).flip(0)
        for _ in range(2):
            for part in torch.randperm(HORIZON).chunk(4):
                chosen = parallel(states[part]).log_softmax(1).gather(1, actions[part, None])[:, 0]
                optimizer.zero_grad()
                (-(chosen * gains[part]).mean()).backward()
                optimizer.step()
        iteration += 1
        if iteration % 10 == 0:
            dist.all_reduce(rewards)
        knobs.step(iteration)


if __name__ == "__main__":
    main()
