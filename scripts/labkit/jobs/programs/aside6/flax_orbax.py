"""Flax and Optax, a mesh over two processes of two devices each, jitted steps; Orbax saves beside the training every 40 steps."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import knobs
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FEATURES, BATCH = 64, 64


class Net(linen.Module):
    @linen.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        hidden = linen.gelu(linen.Dense(128)(inputs))
        hidden = linen.LayerNorm()(hidden)
        return linen.Dense(10)(hidden)


def sample_row(number: int) -> np.ndarray:
    row = np.random.default_rng(number).standard_normal(FEATURES, dtype=np.float32)
    knobs.slow["sample_row"]()
    return row


def normalize(row: np.ndarray) -> np.ndarray:
    scaled = (row - row.mean()) / (row.std() + 1e-6)
    knobs.slow["normalize"]()
    return scaled


@jax.jit
def train_step(state: TrainState, inputs: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_of(parameters: dict) -> jax.Array:
        logits = state.apply_fn({"params": parameters}, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--process-id", type=int, required=True)
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{args.port}", args.processes, args.process_id)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    over_data, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    net = Net()
    parameters = net.init(jax.random.key(0), jnp.zeros((1, FEATURES)))["params"]
    state = TrainState.create(apply_fn=net.apply, params=parameters, tx=optax.adamw(1e-4))
    state = jax.tree.map(lambda each: jax.make_array_from_process_local_data(everywhere, np.asarray(each)), state)
    manager = ocp.CheckpointManager(
        args.out / "checkpoints", options=ocp.CheckpointManagerOptions(save_interval_steps=40, max_to_keep=2)
    )
    knobs.begin(args.out, args.process_id)
    step = 0
    while True:
        rows = np.stack(
            [normalize(sample_row((step * BATCH + at) * args.processes + args.process_id)) for at in range(BATCH)]
        )
        inputs = jax.make_array_from_process_local_data(over_data, rows)
        labels = jax.make_array_from_process_local_data(over_data, np.arange(BATCH) % 10)
        state, loss = train_step(state, inputs, labels)
        step += 1
        manager.save(step, args=ocp.args.StandardSave(state.params))
        if step % 20 == 0:
            print(step, float(loss), flush=True)
        knobs.step(step)


if __name__ == "__main__":
    main()
