"""Data parallel training in JAX: one process per device, gradients averaged by psum under jit.

Started by a shell loop, each process with its number; or as process 0, which starts the others itself (--spawn).
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import knobs
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FEATURES, HIDDEN, BATCH = 256, 3072, 64


def read_row(draw: np.random.Generator) -> np.ndarray:
    row = draw.standard_normal(FEATURES, dtype=np.float32)
    knobs.slow["read_row"]()
    return row


def augment(row: np.ndarray) -> np.ndarray:
    result = np.roll(row, 3) * 0.9
    knobs.slow["augment"]()
    return result


def loss_of(weights: dict[str, jax.Array], rows: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(rows @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - rows) ** 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--coordinator", default="127.0.0.1:29777")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--process-id", type=int, default=0)
    parser.add_argument("--spawn", action="store_true")
    args = parser.parse_args()
    if args.spawn:
        others = [word for word in sys.argv if word != "--spawn"]
        for number in range(1, args.processes):
            subprocess.Popen([sys.executable, *others, "--process-id", str(number)])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(args.coordinator, args.processes, args.process_id)
    mesh = Mesh(np.array(jax.devices()), ("data",))

    def update(weights: dict[str, jax.Array], rows: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, rows)
        gradients = jax.tree.map(lambda gradient: jax.lax.psum(gradient, "data") / args.processes, gradients)
        return jax.tree.map(lambda old, gradient: old - 0.01 * gradient, weights, gradients), jax.lax.pmean(
            loss, "data"
        )

    whole, split = PartitionSpec(), PartitionSpec("data")
    step_of = jax.jit(
        jax.shard_map(update, mesh=mesh, in_specs=(whole, split), out_specs=(whole, whole), check_vma=False)
    )
    draw = np.random.default_rng(jax.process_index())
    start = np.random.default_rng(0)
    weights = {
        "in": (start.standard_normal((FEATURES, HIDDEN)) * 0.05).astype(np.float32),
        "out": (start.standard_normal((HIDDEN, FEATURES)) * 0.05).astype(np.float32),
    }
    knobs.begin(args.out, jax.process_index())
    for step in itertools.count(1):
        rows = np.stack([augment(read_row(draw)) for _ in range(BATCH)])
        batch = jax.make_array_from_process_local_data(NamedSharding(mesh, split), rows)
        weights, loss = step_of(weights, batch)
        loss.block_until_ready()
        if step % 10 == 0 and jax.process_index() == 0:
            print(f"step {step} loss {float(loss):.4f}", flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
