"""XGBoost: boosting rounds over its own collectives; each worker makes its rows, and new ones every few rounds."""

from __future__ import annotations

import argparse
from multiprocessing import get_context
from pathlib import Path

import knobs
import numpy as np
import xgboost
from xgboost.tracker import RabitTracker

ROWS, COLUMNS = 160, 24


def count_visits(row: int) -> np.ndarray:
    visits = np.random.default_rng(row).gamma(2.0, 1.0, COLUMNS)
    knobs.slow["count_visits"]()
    return visits


def ratios(visits: np.ndarray) -> np.ndarray:
    shares = visits / visits.sum()
    knobs.slow["ratios"]()
    return np.log(shares + 1e-3)


def boost(rank: int, orders: dict[str, object], out: Path) -> None:
    with xgboost.collective.CommunicatorContext(**orders):
        number = xgboost.collective.get_rank()
        knobs.begin(out, number)
        booster, done = None, 0
        while True:
            table = np.stack([ratios(count_visits(number * 10_000_000 + done * ROWS + row)) for row in range(ROWS)])
            data = xgboost.DMatrix(table, label=table[:, 0] * 3 + table[:, 1] ** 2)
            if done % 40 == 0:
                booster = xgboost.Booster({"max_depth": 5, "eta": 0.1, "nthread": 1}, cache=[data])
            booster.update(data, done % 40)
            done += 1
            knobs.step(done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args()
    tracker = RabitTracker(host_ip="127.0.0.1", n_workers=args.workers)
    tracker.start()
    context = get_context("spawn")
    running = [
        context.Process(target=boost, args=(rank, tracker.worker_args(), args.out)) for rank in range(args.workers)
    ]
    for each in running:
        each.start()
    tracker.wait_for()


if __name__ == "__main__":
    main()
