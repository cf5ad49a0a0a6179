"""A DDP job whose steps run in threads that take turns: `torchrun turns_job.py KIND OUT [SLOW_RANK]`.

The main thread prepares a batch, and a thread trains with it. OUT/rank<N> gets a line for each step: when it ended (Unix time), and
how long it was.
"""

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KIND, OUT, SLOW = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def prepare(slow: bool) -> torch.Tensor:
    if slow:
        busy(0.03)
    time.sleep(0.01)
    return torch.randn(32, 64)


class Learner:
    def __init__(self) -> None:
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-4)

    def train(self, batch: torch.Tensor) -> None:
        busy(0.01)
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()


def pool(learner: Learner) -> Callable[[torch.Tensor], object]:
    """Threads of a pool, one after the other."""
    threads = ThreadPoolExecutor(3)
    for each in [threads.submit(time.sleep, 0.2) for _ in range(3)]:  # all are there from the beginning
        each.result()
    return lambda batch: threads.submit(learner.train, batch).result()


def worker(learner: Learner, make: Callable[[], "queue.Queue[torch.Tensor]"]) -> Callable[[torch.Tensor], object]:
    """One thread that trains with what it gets from a queue, and answers through another one."""
    batches, answers = make(), make()

    def work() -> None:
        while True:
            learner.train(batches.get())
            answers.put(torch.zeros(1))

    threading.Thread(target=work, daemon=True).start()

    def step(batch: torch.Tensor) -> object:
        batches.put(batch)
        return answers.get()

    return step


def fresh(learner: Learner) -> Callable[[torch.Tensor], object]:
    """A thread for each step."""

    def step(batch: torch.Tensor) -> None:
        thread = threading.Thread(target=learner.train, args=(batch,))
        thread.start()
        thread.join()

    return step


def lines(rank: int) -> Iterator[None]:
    """Each `next` ends a step."""
    with (OUT / f"rank{rank}").open("w", buffering=1) as file:
        last = time.monotonic()
        while True:
            yield
            now = time.monotonic()
            file.write(f"{time.time():.6f} {now - last:.6f}\n")
            last = now


async def in_event_loop(learner: Learner, slow: bool, told: Iterator[None]) -> None:
    while True:
        batch = await asyncio.to_thread(prepare, slow)
        await asyncio.to_thread(learner.train, batch)
        next(told)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    learner, told = Learner(), lines(rank)
    next(told)
    if KIND == "to-thread":
        asyncio.run(in_event_loop(learner, rank == SLOW, told))
    kinds = {
        "pool": lambda: pool(learner),
        "queue": lambda: worker(learner, queue.Queue),
        "simple-queue": lambda: worker(learner, queue.SimpleQueue),  # its wait has no frame of its own
        "fresh": lambda: fresh(learner),
    }
    step = kinds[KIND]()
    while True:
        step(prepare(rank == SLOW))
        next(told)


if __name__ == "__main__":
    main()
