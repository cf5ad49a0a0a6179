"""A trainer rank of a job of reinforcement learning: generate, reward, train, push the weights.

    torchrun --nproc-per-node 2 trainer.py --servers PORT,PORT,PORT

Rank 0 asks the servers and shares their answers with the others, as TRL does. Each line on stdout is
one iteration of rank 0 with the seconds of its stages. `--tail`: one sequence of each iteration is
very long, on another server each time; `--reward`: more seconds for the rewards of a rank.
Knows nothing of rankscope.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

PROMPTS = 8  # of each server and iteration
LENGTHS = (40, 60, 90)  # tokens
TAIL = 500  # tokens of the very long sequence
WIDTH = 400


class Servers:
    """The servers, each with a connection that stays open."""

    def __init__(self, ports: list[int]) -> None:
        self._open = [http.client.HTTPConnection("127.0.0.1", port) for port in ports]
        self._pool = ThreadPoolExecutor(max(len(ports), 1))

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, path: str, bodies: list[bytes]) -> list[bytes]:
        """Send each server its body at once; return the answers when all have come."""
        return list(self._pool.map(lambda one: self._one(one[0], path, one[1]), zip(self._open, bodies, strict=True)))

    def _one(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
        connection.request("POST", path, body)
        return connection.getresponse().read()


def generate(servers: Servers, iteration: int, chance: random.Random, tail: bool) -> list[str]:
    """Have the servers generate one batch of sequences; share it among the ranks."""
    texts: list[str] = []
    if dist.get_rank() == 0:
        lengths = [[chance.choice(LENGTHS) for _ in range(PROMPTS)] for _ in range(len(servers))]
        if tail:
            lengths[iteration % len(servers)][0] = TAIL
        for answer in servers.ask("/generate", [json.dumps(one).encode() for one in lengths]):
            texts += json.loads(answer)
    shared = [texts]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def reward(texts: list[str], slow_s: float) -> torch.Tensor:
    """Score the sequences of this rank."""
    found = [sum(map(ord, text)) % 97 / 97 for text in texts]
    if slow_s:
        judge(slow_s)
    return torch.tensor(found)


def judge(seconds: float) -> None:
    """Take longer for the rewards."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rewards: torch.Tensor) -> None:
    """Make one step of the optimizer for each of a few batches."""
    for _ in range(2):
        loss = (model(torch.randn(64, WIDTH)).mean(dim=1) * rewards.mean()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def push_weights(servers: Servers, model: torch.nn.Module) -> None:
    """Send the weights to every server."""
    if dist.get_rank() == 0:
        body = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
        servers.ask("/weights", [body] * len(servers))
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", required=True)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--tail", action="store_true")
    parser.add_argument("--reward", type=float, default=0.0)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    servers = Servers([int(port) for port in given.servers.split(",")] if dist.get_rank() == 0 else [])
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    optimizer, chance = torch.optim.SGD(model.parameters(), lr=1e-6), random.Random(1)
    for iteration in range(given.iterations):
        times = [time.monotonic()]
        texts = generate(servers, iteration, chance, given.tail)
        times.append(time.monotonic())
        rewards = reward(texts[dist.get_rank() :: dist.get_world_size()], given.reward)
        times.append(time.monotonic())
        train(model, optimizer, rewards)
        times.append(time.monotonic())
        push_weights(servers, model)
        times.append(time.monotonic())
        if dist.get_rank() == 0:
            stages = [after - before for before, after in itertools.pairwise(times)]
            print(json.dumps({"iteration": iteration, "stages_s": stages}), flush=True)


if __name__ == "__main__":
    main()
