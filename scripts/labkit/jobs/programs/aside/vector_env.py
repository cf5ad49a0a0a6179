"""Advantage actor-critic: two processes of environments for each rank, asked through pipes at every step of a rollout."""

from __future__ import annotations

import argparse
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORLDS, PER_WORLD, STATE, ACTIONS, HORIZON = 2, 4, 48, 6, 8


def physics(state: np.ndarray, action: int) -> np.ndarray:
    moved = np.tanh(state + 0.05 * (action - 2.5))
    knobs.slow["physics"]()
    return moved


def serve(pipe: Connection, seed: int) -> None:
    torch.set_num_threads(1)
    states = np.random.default_rng(seed).standard_normal((PER_WORLD, STATE)).astype(np.float32)
    while True:
        actions = pipe.recv()
        states = np.stack([physics(state, int(action)) for state, action in zip(states, actions, strict=True)])
        pipe.send((states, states.mean(1)))


def shape_reward(reward: float) -> float:
    shaped = float(np.sign(reward) * np.sqrt(abs(reward)))
    knobs.slow["shape_reward"]()
    return shaped


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE, 768), nn.Tanh(), nn.Linear(768, 768), nn.Tanh())
        self.policy, self.value = nn.Linear(768, ACTIONS), nn.Linear(768, 1)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(states)
        return self.policy(hidden), self.value(hidden).squeeze(-1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    knobs.follow(args.out, rank)
    pipes = []
    for world in range(WORLDS):
        mine, theirs = multiprocessing.Pipe()
        multiprocessing.Process(target=serve, args=(theirs, 10 * rank + world), daemon=True).start()
        pipes.append(mine)
    model = ActorCritic()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), 7e-4)
    states = torch.zeros(WORLDS * PER_WORLD, STATE)
    knobs.begin(args.out, rank)
    update = 0
    while True:
        seen, taken, rewards = [], [], []
        for _ in range(HORIZON):
            with torch.no_grad():
                actions = torch.distributions.Categorical(logits=model(states)[0]).sample()
            for pipe, part in zip(pipes, actions.chunk(WORLDS), strict=True):
                pipe.send(part.tolist())
            answers = [pipe.recv() for pipe in pipes]
            seen.append(states)
            taken.append(actions)
            rewards.append(torch.tensor([shape_reward(one) for _, each in answers for one in each]))
            states = torch.from_numpy(np.concatenate([after for after, _ in answers]))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).reshape(-1)
        logits, values = parallel(torch.cat(seen))
        gain = (returns - values).detach()
        chosen = logits.log_softmax(1).gather(1, torch.cat(taken)[:, None]).squeeze(1)
        loss = (values - returns).square().mean() - (chosen * gain).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update += 1
        if update % 30 == 0:
            dist.all_reduce(returns.mean())
        knobs.step(update)


if __name__ == "__main__":
    main()
