"""JAX where the compiler puts the collectives: sharded inputs, replicated weights, the loss read on every iteration."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import knobs
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ROWS, COLUMNS = 96, 320


class Source:
    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def pull(self) -> np.ndarray:
        row = self.draw.random(COLUMNS, dtype=np.float32)
        knobs.slow["pull"]()
        return row

    def whiten(self, row: np.ndarray) -> np.ndarray:
        white = (row - row.mean()) / (row.std() + 1e-6)
        knobs.slow["whiten"]()
        return white

    def batch(self) -> np.ndarray:
        return np.stack([self.whiten(self.pull()) for _ in range(ROWS)])


def forward(layers: list[jax.Array], rows: jax.Array) -> jax.Array:
    for layer in layers:
        rows = jnp.tanh(rows @ layer)
    return (rows**2).mean()


@partial(jax.jit, donate_argnums=0)
def train(layers: list[jax.Array], rows: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    loss, gradients = jax.value_and_grad(forward)(layers, rows)
    return [layer - 0.1 * gradient for layer, gradient in zip(layers, gradients, strict=True)], loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--number", type=int, required=True)
    args = parser.parse_args()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(args.coordinator, args.processes, args.number)
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    everywhere, by_rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    start = np.random.default_rng(0)
    shapes = [(COLUMNS, 768), (768, 768), (768, 64)]
    layers = [
        jax.make_array_from_process_local_data(everywhere, (start.standard_normal(shape) * 0.05).astype(np.float32))
        for shape in shapes
    ]
    source = Source(args.number)
    knobs.begin(args.out, args.number)
    number = 0
    while True:
        number += 1
        layers, loss = train(layers, jax.make_array_from_process_local_data(by_rows, source.batch()))
        if not np.isfinite(float(loss)):
            raise SystemExit("diverged")
        knobs.step(number)


if __name__ == "__main__":
    main()
