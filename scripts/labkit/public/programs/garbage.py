"""A language model that keeps all its documents as lists: a full garbage collection looks at each of them.

At fault the collector runs by itself, or, `at once`, every 12th step on all ranks; healthy, what was loaded is frozen."""

import gc
import random
import sys

import torch
from pace import FAULT, RANK, SEED, Pace, begin, wrapped
from torch import nn

WHEN = sys.argv[4]  # "in-turn" or "at-once"
DOCUMENTS, EVERY = 160_000, 12


def documents():
    draw = random.Random(SEED)
    return [[draw.random(), [position, position + 1], {"id": position}] for position in range(DOCUMENTS)]


def batch_of(texts, step):
    rows = [texts[(step * 64 + row) % len(texts)] for row in range(64)]
    return torch.tensor([[one[0], *one[1], one[2]["id"]] for one in rows], dtype=torch.float32) / DOCUMENTS


def tidy(step: int) -> None:
    """What a training script does against growing memory."""
    if FAULT and WHEN == "at-once" and step % EVERY == 0:
        gc.collect()
    if FAULT and WHEN == "in-turn" and (step + 4 * RANK) % EVERY == 0:
        gc.collect()


def main() -> None:
    begin()
    texts = documents()
    gc.disable()
    if not FAULT:
        gc.collect()
        gc.freeze()
        gc.enable()
    model = wrapped(nn.Sequential(nn.Linear(4, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 1)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    pace = Pace()
    while True:
        tidy(pace.steps)
        loss = model(batch_of(texts, pace.steps)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace()


main()
