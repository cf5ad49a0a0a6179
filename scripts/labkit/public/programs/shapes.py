"""A tagger over sentences whose lengths differ: at fault, one rank (or each) compiles its features anew for each new length."""

import sys

import torch
from pace import FAULT, RANK, SEED, Pace, begin, wrapped
from torch import nn

WHO = sys.argv[4]  # "one": the last rank alone has lengths of its own; "all": every rank
RARE = 4  # healthy: so many lengths in all


def features(tokens: torch.Tensor) -> torch.Tensor:
    """Counts, neighbours and positions of a sentence, as one vector of 64."""
    shifted = torch.roll(tokens, 1, 0)
    for power in range(12):
        tokens = torch.sin(tokens * (1 + power)) + 0.5 * shifted
        shifted = torch.cos(shifted) * tokens.mean()
    return tokens.reshape(-1, 64).mean(0)


def lengths(mine: bool):
    """Lengths of sentences: ever new ones, or always the same few."""
    at = SEED
    while True:
        at += 1
        yield 64 * (8 + (at if mine and FAULT else at % RARE))


def main() -> None:
    begin()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 100_000
    compiled = torch.compile(features, backend="eager", dynamic=False)
    model = wrapped(nn.Sequential(nn.Linear(64, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 8)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    pace = Pace()
    for length in lengths(WHO == "all" or RANK == 2):
        batch = torch.stack([compiled(torch.rand(length)), torch.rand(64)]).repeat(48, 1)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace()


main()
