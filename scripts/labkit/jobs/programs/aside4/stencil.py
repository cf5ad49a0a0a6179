"""A field cut into strips over MPI: neighbours swap their edges before each update, a global norm every tenth; a network learns from it."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import numpy as np
from mpi4py import MPI

ROWS, COLUMNS, TILES = 128, 512, 32


class Strip:
    def __init__(self, world: MPI.Comm) -> None:
        self.world = world
        self.rank, self.ranks = world.Get_rank(), world.Get_size()
        self.field = np.random.default_rng(self.rank).random((ROWS + 2, COLUMNS))
        self.weights = np.zeros(COLUMNS)

    def swap_edges(self) -> None:
        above, below = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        waiting = [
            self.world.Irecv(self.field[0], above, tag=1),
            self.world.Irecv(self.field[-1], below, tag=2),
            self.world.Isend(self.field[-2], below, tag=1),
            self.world.Isend(self.field[1], above, tag=2),
        ]
        MPI.Request.Waitall(waiting)

    def read_forcing(self, tile: int) -> np.ndarray:
        forcing = np.sin(np.arange(COLUMNS) * (tile + 1) / TILES)
        knobs.slow["read_forcing"]()
        return forcing

    def limit_slope(self, rows: np.ndarray) -> np.ndarray:
        slope = np.clip(np.diff(rows, axis=1, append=rows[:, :1]), -0.2, 0.2)
        knobs.slow["limit_slope"]()
        return slope

    def update(self) -> None:
        inner, height = self.field[1:-1], ROWS // TILES
        spread = self.field[:-2] + self.field[2:] + np.roll(inner, 1, 1) + np.roll(inner, -1, 1) - 4 * inner
        for tile in range(TILES):
            rows = slice(tile * height, (tile + 1) * height)
            for _ in range(3):
                spread[rows] += 0.1 * self.limit_slope(inner[rows]) + 0.01 * self.read_forcing(tile)
        inner += 0.1 * spread
        self.weights += 1e-3 * (inner.mean(0) - self.weights)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    strip = Strip(MPI.COMM_WORLD)
    knobs.begin(args.out, strip.rank)
    number = 0
    while True:
        strip.swap_edges()
        strip.update()
        number += 1
        if number % 10 == 0:
            norm = strip.world.allreduce(float(np.linalg.norm(strip.weights)))
            if strip.rank == 0 and number % 200 == 0:
                print(number, norm, flush=True)
        knobs.step(number)


if __name__ == "__main__":
    main()
