"""Policy gradients as verl and OpenRLHF drive them: workers are actors of Ray, and the loop is the driver's."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import knobs
import ray
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS, WIDTH, LENGTH, PROMPTS, MINIBATCH = 96, 64, 10, 16, 8


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.embed(tokens))[0])


def draw_prompt(number: int) -> torch.Tensor:
    prompt = torch.randint(WORDS, (4,), generator=torch.Generator().manual_seed(number))
    knobs.slow["draw_prompt"]()
    return prompt


def pack(answer: torch.Tensor) -> torch.Tensor:
    packed = torch.cat([answer, answer.new_zeros(2)])
    knobs.slow["pack"]()
    return packed


@ray.remote(num_cpus=1)
class Worker:
    """An actor, its copy of the policy and its optimiser."""

    def __init__(self, out: str) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.policy = Policy()
        self.shared = DistributedDataParallel(self.policy)
        self.optimizer = torch.optim.AdamW(self.shared.parameters(), lr=1e-4)
        self.done = 0
        knobs.begin(out, self.rank)

    @torch.no_grad()
    def generate(self, iteration: int) -> torch.Tensor:
        tokens = torch.stack([draw_prompt(iteration * PROMPTS + number) for number in range(PROMPTS)])
        for _ in range(LENGTH):
            following = torch.distributions.Categorical(logits=self.policy(tokens)[:, -1]).sample()
            tokens = torch.cat([tokens, following[:, None]], 1)
        return tokens

    @torch.no_grad()
    def log_probabilities(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=self.policy(tokens[:, :-1])).log_prob(tokens[:, 1:])

    def update(self, tokens: torch.Tensor, rewards: torch.Tensor) -> float:
        tokens = torch.stack([pack(answer) for answer in tokens])
        for chosen in torch.randperm(len(tokens)).split(MINIBATCH):
            logits = self.shared(tokens[chosen, :-1])
            told = torch.distributions.Categorical(logits=logits).log_prob(tokens[chosen, 1:])
            loss = -(told.mean(1) * rewards[chosen]).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.done += 1
        knobs.step(self.done)
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args()
    ray.init(num_cpus=args.workers + 1, include_dashboard=False)
    meeting = {
        "MASTER_ADDR": socket.gethostbyname(socket.gethostname()),
        "MASTER_PORT": str(args.port),
        "WORLD_SIZE": str(args.workers),
    }
    workers = [
        Worker.options(runtime_env={"env_vars": {**meeting, "RANK": str(rank)}}).remote(str(args.out))
        for rank in range(args.workers)
    ]
    iteration = 0
    while True:
        answers = ray.get([worker.generate.remote(iteration) for worker in workers])
        ray.get([worker.log_probabilities.remote(answer) for worker, answer in zip(workers, answers, strict=True)])
        rewards = [torch.tensor([float(len(set(one.tolist()))) for one in answer]) for answer in answers]
        losses = ray.get([worker.update.remote(a, r) for worker, a, r in zip(workers, answers, rewards, strict=True)])
        iteration += 1
        if iteration % 20 == 0:
            print(iteration, losses, flush=True)


if __name__ == "__main__":
    main()
