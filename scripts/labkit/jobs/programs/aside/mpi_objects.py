"""Evolution strategies over MPI: small pickled messages, a broadcast, an all-gather and a barrier in each generation."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import numpy as np
from mpi4py import MPI

SIZE, TRIALS = 4000, 40


class Population:
    def __init__(self, world: MPI.Comm) -> None:
        self.world = world
        self.draw = np.random.default_rng(world.Get_rank())
        self.mean = np.zeros(SIZE)

    def world_state(self) -> np.ndarray:
        state = self.draw.standard_normal(SIZE)
        knobs.slow["world_state"]()
        return state

    def rollout(self, seed: int) -> float:
        noise = np.random.default_rng(seed).standard_normal(SIZE)
        score = float(-np.abs(self.mean + 0.1 * noise - self.world_state()).mean())
        for _ in range(6):
            noise = np.sort(np.cumsum(noise))
        knobs.slow["rollout"]()
        return score

    def generation(self) -> float:
        seeds = self.world.bcast([int(seed) for seed in self.draw.integers(1 << 30, size=TRIALS)])
        scores = {seed: self.rollout(seed) for seed in seeds}
        everybody = self.world.allgather(scores)
        best = max(everybody[0], key=lambda seed: sum(of_rank[seed] for of_rank in everybody))
        self.mean += 0.01 * np.random.default_rng(best).standard_normal(SIZE)
        self.world.Barrier()
        return max(scores.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    population = Population(MPI.COMM_WORLD)
    knobs.begin(args.out, MPI.COMM_WORLD.Get_rank())
    number = 0
    while True:
        best = population.generation()
        number += 1
        if number % 100 == 0 and MPI.COMM_WORLD.Get_rank() == 0:
            print(number, best, flush=True)
        knobs.step(number)


if __name__ == "__main__":
    main()
