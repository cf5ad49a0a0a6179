"""A regression that computes all the time. Its fourth word says what is wrong at fault:

pinned      all ranks may use CPU 0 alone (healthy: all of them)
threads     each rank computes with two threads, on as many CPUs as there are ranks (healthy: one)
anew        its allocator gives memory back in each step (environment; healthy: keeps it)
saves       a checkpoint of all ranks every tenth step (healthy: every thousandth)
rotates     each rank packs its own log, in steps of its own (healthy: nobody does)
prints      each step writes its losses to a file and waits until they are on the disk (healthy: at its end)
grows       each step looks through all losses so far (healthy: through the last hundred)
evaluates   one step in forty is an evaluation, a twentieth of the time, in both: no waste
"""

import gzip
import os
import sys

import torch
from pace import FAULT, OUT, RANK, SEED, Pace, begin, wrapped
from torch import nn

HOW = sys.argv[4]
SIZE = 1100


class Journal:
    """Losses of this rank, and what is done with them."""

    def __init__(self) -> None:
        self.file = (OUT / f"losses{RANK}.txt").open("w")
        self.losses = []

    def note(self, loss: float) -> None:
        self.losses.append(loss)
        for layer in range(40):
            self.file.write(f"{len(self.losses)} {layer} {loss:.9f} {'.' * 400}\n")
            if HOW == "prints" and FAULT:
                self.flush()

    def flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def worst(self) -> float:
        """The mean of the largest tenth, so far or lately."""
        seen = self.losses * 1200 if HOW == "grows" and FAULT else self.losses[-100:]
        return sum(sorted(seen)[-max(1, len(seen) // 10) :])

    def rotate(self) -> None:
        with gzip.open(OUT / f"losses{RANK}.gz", "wb") as packed:
            packed.write(os.urandom(7 << 20))


def due(step: int) -> bool:
    """Whether it is this rank's turn: every 30th step, one rank after the other."""
    return step > 0 and step % 30 == 10 * RANK


def main() -> None:
    if HOW == "pinned" and FAULT:
        os.sched_setaffinity(0, {0})
    torch.set_num_threads(2 if HOW == "threads" and FAULT else 1)
    begin()
    model = wrapped(nn.Sequential(nn.Linear(64, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, 1)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    journal, pace = Journal(), Pace()
    draw = torch.Generator().manual_seed(SEED + RANK)
    while True:
        batch = torch.rand(192, 64, generator=draw)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        journal.note(loss.item())
        journal.worst()
        if HOW == "saves" and pace.steps % (10 if FAULT else 1000) == 9:
            for part in range(6):
                torch.save([model.state_dict(), optimizer.state_dict()], OUT / f"checkpoint{RANK}-{part}.pt")
        if HOW == "rotates" and FAULT and due(pace.steps):
            journal.rotate()
        if HOW == "evaluates" and pace.steps % 40 == 39:
            with torch.no_grad():
                for _ in range(4):
                    model(torch.rand(192, 64, generator=draw))
        pace()


main()
