"""TensorFlow: a training loop by hand, MultiWorkerMirroredStrategy, strategy.run in a tf.function."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import knobs
import numpy as np

BATCH, WIDTH = 40, 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--index", type=int, required=True)
    args = parser.parse_args()
    workers = [f"127.0.0.1:{args.port + index}" for index in range(args.workers)]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": args.index}}
    )
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    train(args.out, args.index)


def train(out: Path, rank: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential(layers)
        model.build((None, WIDTH))
        optimizer = tf.keras.optimizers.Adam(1e-3)

    def replica(inputs: object, targets: object) -> object:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True)[:, 0] - targets))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(inputs: object, targets: object) -> object:
        losses = strategy.run(replica, args=(inputs, targets))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    knobs.begin(out, rank)
    number = 0
    while True:
        signals = [whiten(sample(number * BATCH + row)) for row in range(BATCH)]
        inputs = tf.constant(np.stack(signals), tf.float32)
        loss = train_step(inputs, tf.reduce_sum(inputs[:, :8], axis=1))
        number += 1
        if rank == 0 and number % 50 == 0:
            print(number, float(loss), flush=True)
        knobs.step(number)


def sample(index: int) -> np.ndarray:
    signal = np.random.default_rng(index).standard_normal(WIDTH).cumsum()
    knobs.slow["sample"]()
    return signal


def whiten(signal: np.ndarray) -> np.ndarray:
    spectrum = np.fft.rfft(signal)
    knobs.slow["whiten"]()
    return np.fft.irfft(spectrum / (np.abs(spectrum) + 1.0), WIDTH)


if __name__ == "__main__":
    main()
