"""Keras 3 on JAX: keras.distribution over two processes, model.fit of a PyDataset."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import knobs
import numpy as np

FEATURES, BATCH = 64, 32


def read_row(number: int) -> np.ndarray:
    row = np.random.default_rng(number).standard_normal(FEATURES).astype("float32")
    knobs.slow["read_row"]()
    return row


def clip(row: np.ndarray) -> np.ndarray:
    clipped = np.clip(row, -2, 2)
    knobs.slow["clip"]()
    return clipped


class Rows(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.stack([clip(read_row(number * BATCH + at)) for at in range(BATCH)])
        return rows, np.arange(BATCH) % 10


class Lines(keras.callbacks.Callback):
    def __init__(self, out: Path, rank: int) -> None:
        super().__init__()
        self.out, self.rank = out, rank

    def on_train_begin(self, logs: dict | None = None) -> None:
        knobs.begin(self.out, self.rank)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        knobs.step(batch + 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--process-id", type=int, required=True)
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize(f"127.0.0.1:{args.port}", args.processes, args.process_id)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(Rows(), epochs=1, verbose=0, callbacks=[Lines(args.out, args.process_id)])


if __name__ == "__main__":
    main()
