"""numpy over MPI: the gradients are summed by Iallreduce while the next batch is made."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import numpy as np
from mpi4py import MPI

PIXELS, HIDDEN, CLASSES, BATCH = 400, 256, 10, 160


def scan_plate(draw: np.random.Generator) -> np.ndarray:
    plate = draw.random(PIXELS, dtype=np.float32)
    knobs.slow["scan_plate"]()
    return plate


def flatten_field(plate: np.ndarray) -> np.ndarray:
    flat = plate - np.convolve(plate, np.ones(9, np.float32) / 9, mode="same")
    knobs.slow["flatten_field"]()
    return flat


def next_batch(draw: np.random.Generator) -> np.ndarray:
    return np.stack([flatten_field(scan_plate(draw)) for _ in range(BATCH)])


def backprop(weights: list[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    hidden = np.maximum(rows @ weights[0], 0)
    logits = hidden @ weights[1]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    odds /= odds.sum(1, keepdims=True)
    odds[np.arange(len(rows)), rows[:, :CLASSES].argmax(1)] -= 1
    back = (odds @ weights[1].T) * (hidden > 0)
    return [rows.T @ back / len(rows), hidden.T @ odds / len(rows)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    draw = np.random.default_rng(comm.rank)
    start = np.random.default_rng(0)
    weights = [
        (0.05 * start.standard_normal(shape)).astype(np.float32) for shape in ((PIXELS, HIDDEN), (HIDDEN, CLASSES))
    ]
    sums = [np.empty_like(part) for part in weights]
    knobs.begin(args.out, comm.rank)
    rows, done = next_batch(draw), 0
    while True:
        gradients = backprop(weights, rows)
        requests = [comm.Iallreduce(part, total) for part, total in zip(gradients, sums, strict=True)]
        rows = next_batch(draw)
        MPI.Request.Waitall(requests)
        for part, total in zip(weights, sums, strict=True):
            np.subtract(part, 0.05 * total / comm.size, out=part)
        done += 1
        if done % 50 == 0:
            checksum = comm.gather(float(weights[0].sum()))
            if comm.rank == 0:
                print(f"{done}: {checksum}", flush=True)
        knobs.step(done)


if __name__ == "__main__":
    main()
