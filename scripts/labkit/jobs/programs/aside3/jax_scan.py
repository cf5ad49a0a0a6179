"""JAX on several processes that multiprocessing spawned: four inner steps under lax.scan in one call, momentum by hand."""

from __future__ import annotations

import argparse
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import knobs
import numpy as np

INNER, BATCH, STATE, WIDTH = 4, 24, 48, 512


def integrate(state: np.ndarray) -> np.ndarray:
    after = state + 0.01 * np.sin(state)
    knobs.slow["integrate"]()
    return after


def draw_state(draw: np.random.Generator) -> np.ndarray:
    state = draw.standard_normal(STATE, dtype=np.float32)
    knobs.slow["draw_state"]()
    return state


def make_chunk(draw: np.random.Generator) -> np.ndarray:
    rows = [integrate(draw_state(draw)) for _ in range(INNER * BATCH)]
    return np.stack(rows).reshape(1, INNER, BATCH, STATE)


def loss_fn(params: Any, rows: Any) -> Any:
    import jax.numpy as jnp

    hidden = jnp.tanh(rows @ params["w1"] + params["b1"])
    hidden = jnp.tanh(hidden @ params["w2"])
    return jnp.mean((hidden @ params["w3"] - jnp.cos(rows)) ** 2)


def train(number: int, args: argparse.Namespace) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{args.port}", args.workers, number)
    mesh = Mesh(np.array(jax.devices()), ("batch",))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(), P("batch")), out_specs=(P(), P(), P()), check_vma=False)
    def train_chunk(params: Any, momentum: Any, chunk: Any) -> Any:
        def inner(carry: Any, rows: Any) -> Any:
            params, momentum = carry
            loss, grads = jax.value_and_grad(loss_fn)(params, rows)
            grads, loss = jax.lax.pmean((grads, loss), "batch")
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
            params = jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum)
            return (params, momentum), loss

        (params, momentum), losses = jax.lax.scan(inner, (params, momentum), chunk[0])
        return params, momentum, losses.mean()

    key = np.random.default_rng(0)
    params = {
        "w1": key.standard_normal((STATE, WIDTH)).astype(np.float32) / 7,
        "b1": np.zeros(WIDTH, np.float32),
        "w2": key.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 23,
        "w3": key.standard_normal((WIDTH, STATE)).astype(np.float32) / 23,
    }
    momentum = jax.tree.map(jnp.zeros_like, params)
    draw = np.random.default_rng(number)
    knobs.begin(args.out, jax.process_index())
    done, chunks = 0, NamedSharding(mesh, P("batch"))
    while True:
        chunk = jax.make_array_from_process_local_data(chunks, make_chunk(draw))
        params, momentum, loss = train_chunk(params, momentum, chunk)
        done += 1
        if done % 20 == 0 and number == 0:
            print(f"chunk {done}: {float(loss):.5f}", flush=True)
        else:
            jax.block_until_ready(loss)
        knobs.step(done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, default=29555)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=train, args=(number, args), name=f"worker-{number}") for number in range(args.workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
