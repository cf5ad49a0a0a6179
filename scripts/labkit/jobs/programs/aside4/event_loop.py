"""A trainer in asyncio: batches come from a task that fills a queue, a step runs in a thread of the loop's executor."""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCH = 160, 40


class Feed:
    """Messages as a broker would give them."""

    def __init__(self, rank: int) -> None:
        self.random = random.Random(rank)

    def receive_message(self) -> dict[str, float]:
        message = {f"field {number}": self.random.gauss(0, 1) for number in range(WIDTH)}
        knobs.slow["receive_message"]()
        return message

    async def fill(self, queue: asyncio.Queue[list[dict[str, float]]]) -> None:
        while True:
            messages = []
            for _ in range(BATCH):
                messages.append(self.receive_message())
                await asyncio.sleep(0)
            await queue.put(messages)


class Learner:
    def __init__(self) -> None:
        self.model = nn.Sequential(
            nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, WIDTH)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-4)

    def to_row(self, message: dict[str, float]) -> list[float]:
        row = [max(-3.0, min(3.0, message[name])) for name in sorted(message)]
        knobs.slow["to_row"]()
        return row

    def train(self, messages: list[dict[str, float]]) -> float:
        rows = torch.tensor([self.to_row(message) for message in messages])
        loss = nn.functional.smooth_l1_loss(self.model(rows), rows)
        self.optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
        dist.all_reduce(flat)
        for parameter, part in zip(
            self.model.parameters(), flat.split([one.numel() for one in self.model.parameters()]), strict=True
        ):
            parameter.grad.copy_(part.view_as(parameter) / dist.get_world_size())
        self.optimizer.step()
        return float(loss)


async def run(out: Path) -> None:
    rank = dist.get_rank()
    queue: asyncio.Queue[list[dict[str, float]]] = asyncio.Queue(maxsize=2)
    filling = asyncio.create_task(Feed(rank).fill(queue))
    learner = Learner()
    knobs.begin(out, rank)
    for number in range(1, 10_000_000):
        loss = await asyncio.to_thread(learner.train, await queue.get())
        if number % 100 == 0 and rank == 0:
            print(number, loss, filling.done(), flush=True)
        knobs.step(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    asyncio.run(run(args.out))


if __name__ == "__main__":
    main()
