"""Policy gradients on generated text: tokens one by one, a reward in Python, then two epochs of updates in minibatches; torchrun."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS, WIDTH, LENGTH, PROMPTS, MINIBATCH = 96, 64, 12, 16, 8


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.embed(tokens))[0])


class Learner:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.policy = Policy()
        self.shared = DistributedDataParallel(self.policy)
        self.optimizer = torch.optim.AdamW(self.shared.parameters(), lr=1e-4)
        self.drawn = 0

    def prompts(self) -> torch.Tensor:
        return torch.stack([draw_prompt(self.drawn + number) for number in range(PROMPTS)])

    @torch.no_grad()
    def generate(self, tokens: torch.Tensor) -> torch.Tensor:
        self.drawn += PROMPTS
        for _ in range(LENGTH):
            following = torch.distributions.Categorical(logits=self.policy(tokens)[:, -1]).sample()
            tokens = torch.cat([tokens, following[:, None]], 1)
        return tokens

    def learn(self, tokens: torch.Tensor, rewards: torch.Tensor) -> None:
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-3)
        for _ in range(2):
            for chosen in torch.randperm(len(tokens)).split(MINIBATCH):
                logits = self.shared(tokens[chosen, :-1])
                told = torch.distributions.Categorical(logits=logits).log_prob(tokens[chosen, 1:])
                loss = -(told.mean(1) * advantages[chosen]).mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.shared.parameters(), 1.0)
                self.optimizer.step()


def draw_prompt(number: int) -> torch.Tensor:
    prompt = torch.randint(WORDS, (4,), generator=torch.Generator().manual_seed(number))
    knobs.slow["draw_prompt"]()
    return prompt


def grade(tokens: list[int]) -> float:
    pairs = {(one, other) for one, other in itertools.pairwise(tokens) if one < other}
    knobs.slow["grade"]()
    return len(pairs) / len(tokens)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    learner = Learner(dist.get_rank())
    knobs.begin(args.out, dist.get_rank())
    iteration = 0
    while True:
        answers = learner.generate(learner.prompts())
        rewards = torch.tensor([grade(answer) for answer in answers.tolist()])
        learner.learn(answers, rewards)
        iteration += 1
        if iteration % 10 == 0:
            dist.all_reduce(rewards)
            if learner.rank == 0:
                print(iteration, float(rewards.mean()), flush=True)
        knobs.step(iteration)


if __name__ == "__main__":
    main()
