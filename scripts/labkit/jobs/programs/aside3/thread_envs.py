"""Reinforcement learning: environments stepped by a pool of threads, gradients averaged by hand, an evaluation every 40 updates."""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn

ENVS, HORIZON, STATE, ACTIONS = 8, 12, 6, 3


class Pendulum:
    def __init__(self, number: int) -> None:
        self.random = torch.Generator().manual_seed(number)
        self.reset()

    def reset(self) -> None:
        self.angle, self.speed, self.age = 3.0, 0.0, 0

    def step(self, action: int) -> tuple[list[float], float]:
        self.speed += 0.05 * (action - 1) - 0.02 * math.sin(self.angle)
        self.angle += self.speed
        self.age += 1
        reward = math.cos(self.angle)
        knobs.slow["step"]()
        if self.age > 200:
            self.reset()
        return self.observe(), reward

    def observe(self) -> list[float]:
        noise = torch.randn(2, generator=self.random).tolist()
        knobs.slow["observe"]()
        return [math.sin(self.angle), math.cos(self.angle), self.speed, *noise, self.age / 200]


class Agent:
    def __init__(self, rank: int) -> None:
        self.envs = [Pendulum(100 * rank + number) for number in range(ENVS)]
        self.pool = ThreadPoolExecutor(4, thread_name_prefix="env")
        self.policy = nn.Sequential(
            nn.Linear(STATE, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, ACTIONS)
        )
        for part in self.policy.parameters():
            dist.broadcast(part.data, 0)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), 1e-3)
        self.state = torch.tensor([env.observe() for env in self.envs])

    def collect(self, horizon: int) -> tuple[torch.Tensor, torch.Tensor]:
        chances, rewards = [], []
        for _ in range(horizon):
            choice = torch.distributions.Categorical(logits=self.policy(self.state))
            actions = choice.sample()
            results = list(self.pool.map(Pendulum.step, self.envs, actions.tolist()))
            self.state = torch.tensor([state for state, _ in results])
            chances.append(choice.log_prob(actions))
            rewards.append(torch.tensor([reward for _, reward in results]))
        return torch.stack(chances), torch.stack(rewards)

    def update(self, chances: torch.Tensor, rewards: torch.Tensor) -> float:
        returns = rewards.flip(0).cumsum(0).flip(0)
        loss = -(chances * (returns - returns.mean())).mean()
        self.optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([part.grad.flatten() for part in self.policy.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        place = 0
        for part in self.policy.parameters():
            part.grad.copy_(flat[place : place + part.numel()].view_as(part))
            place += part.numel()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self) -> float:
        _, rewards = self.collect(3 * HORIZON)
        total = rewards.mean()
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    agent = Agent(dist.get_rank())
    knobs.begin(args.out, dist.get_rank())
    done = 0
    while True:
        agent.update(*agent.collect(HORIZON))
        done += 1
        if done % 40 == 0:
            reward = agent.evaluate()
            if dist.get_rank() == 0:
                print(f"update {done}: reward {reward:.3f}", flush=True)
        knobs.step(done)


if __name__ == "__main__":
    main()
