"""Logistic regression in numpy, the gradient summed over MPI."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import knobs
import numpy as np
from mpi4py import MPI

FEATURES, CLASSES, BATCH = 512, 256, 384


def read_row(draw: np.random.Generator) -> np.ndarray:
    row = draw.standard_normal(FEATURES, dtype=np.float32)
    knobs.slow["read_row"]()
    return row


def standardize(row: np.ndarray) -> np.ndarray:
    result = (row - row.mean()) / row.std()
    knobs.slow["standardize"]()
    return result


def gradient_of(weights: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    logits = rows @ weights
    odds = np.exp(logits - logits.max(1, keepdims=True))
    odds /= odds.sum(1, keepdims=True)
    odds[np.arange(len(labels)), labels] -= 1
    return rows.T @ odds / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    draw = np.random.default_rng(rank)
    weights = np.zeros((FEATURES, CLASSES), dtype=np.float32)
    total = np.empty_like(weights)
    knobs.begin(args.out, rank)
    for step in itertools.count(1):
        rows = np.stack([standardize(read_row(draw)) for _ in range(BATCH)])
        gradient = np.zeros_like(weights)
        for part in np.split(rows, 4):
            gradient += gradient_of(weights, part, part[:, :CLASSES].argmax(1)).astype(np.float32)
        world.Allreduce(gradient, total, op=MPI.SUM)
        weights -= 0.1 * total / size
        if step % 10 == 0 and rank == 0:
            print(f"step {step} norm {float(np.linalg.norm(weights)):.4f}", flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
