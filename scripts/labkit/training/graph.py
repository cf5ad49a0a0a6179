"""A graph network whose nodes are spread over the ranks: another shape of the lab's job, with the same options and files.

Random walks in Python choose the neighbours of each node; what of them lies on other ranks comes from there, rank to rank, before each
layer, and its gradients go back. Each rank updates its part of the weights for all, and rank 0 sends everyone the averaged weights now
and then. The loop is a trainer's, and what is done around a batch is done by callbacks.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn

INPUTS, HIDDEN, CLASSES, LAYERS = 64, 64, 16, 2
NODES_PER_ROW = 2
DEGREE, HOPS, KEPT = 12, 3, 6
REMOTE_SHARE = 0.2
REACH = 2  # parts of the graph touch those of the two ranks before and after
AVERAGED_EVERY, PRINTED_EVERY, DECAY = 25, 100, 0.99

Batch = tuple[Tensor, Tensor]


def partners(rank: int, world: int) -> list[int]:
    """Ranks whose nodes have edges to those of this one."""
    near = {(rank + step) % world for step in range(-REACH, REACH + 1)}
    return sorted(near - {rank})


class Part:
    """One rank's part of the graph: blocks of nodes on disk, read past the page cache, and whom each node knows.

    A neighbour is (rank, slot in the block). `effort` sets the number of walks from each node.
    """

    def __init__(self, folder: Path, block_bytes: int, nodes: int, rank: int, world: int, effort: int) -> None:
        self.nodes, self._rank, self._block_bytes = nodes, rank, block_bytes
        self._places = places(folder, block_bytes)
        self._walks = max(KEPT, effort // 3)
        self._rng = random.Random(rank)
        near = partners(rank, world)
        self._neighbours = [[self._neighbour(slot, near) for _ in range(DEGREE)] for slot in range(8 * nodes)]

    def _neighbour(self, slot: int, near: list[int]) -> tuple[int, int]:
        if self._rng.random() < REMOTE_SHARE:
            return self._rng.choice(near), self._rng.randrange(self.nodes)
        return self._rank, max(0, slot + self._rng.randint(-3 * DEGREE, 3 * DEGREE))

    def read_block(self) -> np.ndarray:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        block = os.pread(fd, self._block_bytes, min(offset, size - self._block_bytes))
        slow["read_block"]()
        return np.frombuffer(block, dtype=np.uint8)

    def node_features(self, block: np.ndarray, nodes: int) -> np.ndarray:
        features = np.resize(block, (nodes, INPUTS)).astype(np.float32) / 255
        slow["node_features"]()
        return features

    def sample_neighbours(self, nodes: int) -> list[tuple[int, int, int]]:
        """(node, rank, slot) of those that random walks from each node meet most; a walk that leaves the rank starts again."""
        draw, neighbours, own = self._rng.random, self._neighbours, self._rank
        found = []
        for node in range(nodes):
            met: collections.Counter[tuple[int, int]] = collections.Counter()
            at = node
            for _ in range(self._walks * HOPS):
                neighbour = neighbours[at][int(draw() * DEGREE)]
                met[neighbour] += 1
                at = neighbour[1] if neighbour[0] == own and neighbour[1] < nodes else node
            found += [(node, *neighbour) for neighbour, _ in met.most_common(KEPT)]
        slow["sample_neighbours"]()
        return found

    def drop_edges(self, edges: list[tuple[int, int, int]], nodes: int) -> list[tuple[int, int, int]]:
        """Without every tenth, and without those to nodes that are not in this batch."""
        left = [edge for edge in edges if self._rng.random() > 0.1 and (edge[1] != self._rank or edge[2] < nodes)]
        slow["drop_edges"]()
        return left

    def batch(self, block: np.ndarray, length: float) -> Batch:
        nodes = int(self.nodes * length)
        features = self.node_features(block, nodes)
        edges = self.drop_edges(self.sample_neighbours(nodes), nodes)
        return self.to_tensors(features, edges)

    def to_tensors(self, features: np.ndarray, edges: list[tuple[int, int, int]]) -> Batch:
        found = torch.from_numpy(features), torch.tensor(edges).t().contiguous()
        slow["to_tensors"]()
        return found


class Halo:
    """The nodes of other ranks that this batch needs, and those of this one that others need."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._near = partners(rank, world)

    def meet(self, edges: Tensor, nodes: int, watch: Stopwatch) -> Tensor:
        """Tell the others what is needed of them; the sources of the edges, as rows of the own nodes and then of the others'."""
        _, owner, slot = edges
        wanted, sources, begin = {}, slot.clone(), nodes
        for rank in self._near:
            wanted[rank], places_of = torch.unique(slot[owner == rank], return_inverse=True)
            sources[owner == rank] = places_of + begin
            begin += len(wanted[rank])
        self._sizes = {rank: len(slots) for rank, slots in wanted.items()}
        counts = torch.zeros(self._world, dtype=torch.int64)
        counts[self._near] = torch.tensor(list(self._sizes.values()))
        with watch.part("backward"):
            everyones = [torch.empty_like(counts) for _ in range(self._world)]
            dist.all_gather(everyones, counts)
            asked = {rank: torch.empty(int(everyones[rank][self._rank]), dtype=torch.int64) for rank in self._near}
            _swap(wanted, asked)
        self._asked = asked
        return sources

    def fetch(self, rows: Tensor) -> Tensor:
        """The others' rows, in the order of `meet`."""
        found = {rank: rows.new_empty(size, rows.shape[1]) for rank, size in self._sizes.items()}
        _swap({rank: rows[slots] for rank, slots in self._asked.items()}, found)
        return torch.cat(list(found.values()))

    def give_back(self, gradients: Tensor, rows: Tensor) -> None:
        """Send the gradients of the others' rows to them, and add theirs of the own rows to `rows`."""
        parts = gradients.split(list(self._sizes.values()))
        mine = {rank: rows.new_empty(len(slots), rows.shape[1]) for rank, slots in self._asked.items()}
        _swap({rank: part.contiguous() for rank, part in zip(self._sizes, parts, strict=True)}, mine)
        for rank, slots in self._asked.items():
            rows.index_add_(0, slots, mine[rank])


def _swap(sent: dict[int, Tensor], received: dict[int, Tensor]) -> None:
    """Send to, and receive from, each rank what is said for it."""
    works = [dist.irecv(into, rank) for rank, into in received.items() if into.numel()]
    works += [dist.isend(what, rank) for rank, what in sent.items() if what.numel()]
    for work in works:
        work.wait()


class WithHalo(torch.autograd.Function):
    """Own rows, and below them those of other ranks."""

    @staticmethod
    def forward(ctx, rows: Tensor, halo: Halo) -> Tensor:
        ctx.halo, ctx.own = halo, len(rows)
        return torch.cat((rows, halo.fetch(rows)))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        own = gradient[: ctx.own].clone()
        ctx.halo.give_back(gradient[ctx.own :], own)
        return own, None


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(INPUTS, HIDDEN), nn.Linear(INPUTS, HIDDEN, bias=False)

    def forward(self, rows: Tensor, all_rows: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        degree = torch.bincount(targets, minlength=len(rows)).clamp(min=1).unsqueeze(1)
        mean = torch.zeros(len(rows), all_rows.shape[1]).index_add(0, targets, all_rows[sources]) / degree
        return F.relu(self.own(rows) + self.near(mean))


class Network(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Sequential(
            nn.Linear(HIDDEN, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
        )


class Weights:
    """All weights in one vector, of which each rank keeps the moments of a part, and updates it for all."""

    def __init__(self, model: nn.Module, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        parameters = list(model.parameters())
        count = sum(one.numel() for one in parameters)
        part = -(-count // world)
        self.flat, self._gradient = torch.zeros(part * world), torch.zeros(part * world)
        self._mean, self._square = torch.zeros(part), torch.zeros(part)
        at = 0
        for one in parameters:
            here = slice(at, at + one.numel())
            self.flat[here] = one.data.flatten()
            one.data, one.grad = self.flat[here].view_as(one), self._gradient[here].view_as(one)
            at = here.stop
        dist.broadcast(self.flat, 0)
        self.average = self.flat.clone()

    def reduce(self) -> Tensor:
        part = torch.empty_like(self._mean)
        dist.reduce_scatter_tensor(part, self._gradient)
        return part / self._world

    def update(self, gradient: Tensor) -> Tensor:
        """Adam, for the part of this rank."""
        self._mean.lerp_(gradient, 0.1)
        self._square.lerp_(gradient.square(), 0.01)
        self._gradient.zero_()
        return self.flat.chunk(self._world)[self._rank] - 1e-3 * self._mean / (self._square.sqrt() + 1e-8)

    def gather(self, part: Tensor) -> None:
        dist.all_gather(list(self.flat.chunk(self._world)), part)


class Trainer:
    def __init__(self, args: argparse.Namespace, rank: int, world: int, callbacks: list[Callback]) -> None:
        self.args, self.rank, self.world, self.callbacks = args, rank, world, callbacks
        self.step, self.length, self.loss = 0, 1.0, 0.0
        self.watch = Stopwatch(Recorder(args.dir / f"rank{rank}.steps"))
        self.features = features_of(args, rank)
        self.part = Part(
            args.data / f"rank{rank}", args.sample_kib * 1024, NODES_PER_ROW * args.batch, rank, world, args.crops
        )
        its_control = Control(args.dir / f"rank{rank}.control")

        def make_batch(number: int) -> Batch:
            its_control.poll(number)
            return self.part.batch(self.part.read_block(), 1.0)

        self.loader = Loader(make_batch, args.workers)
        self.loader.follow({})
        self.halo, self._jitter = Halo(rank, world), random.Random(rank)
        self.build(args.width, 1.0)

    def build(self, width: int, longer: float) -> None:
        self.model = Network(width)
        self.weights = Weights(self.model, self.rank, self.world)
        self.device_s = self.args.device_ms / 1000 * longer

    def batches(self) -> Iterator[Batch]:
        while True:
            with self.watch.part("load"):
                found = self.loader.next_batch() if self.args.workers else self.part.read_block()
            with self.watch.part("prepare"):
                batch = found if self.args.workers else self.part.batch(found, self.length)
                self.features.before_forward()
            yield batch

    def fit(self) -> None:
        batches = self.batches()
        for step in range(self.args.steps) if self.args.steps else itertools.count():
            self.step = step
            for callback in self.callbacks:
                callback.on_batch_start(self)
            self.train_batch(*next(batches))
            for callback in self.callbacks:
                callback.on_batch_end(self)

    def train_batch(self, features: Tensor, edges: Tensor) -> None:
        with self.watch.part("forward"):
            scores = self.forward(features, edges)
            loss = F.cross_entropy(scores, (features[:, 0] * 255).long() % CLASSES)
        with self.watch.part("backward"):
            loss.backward()
            gradient = self.weights.reduce()
        with self.watch.part("optimizer"):
            part = self.weights.update(gradient)
        with self.watch.part("backward"):
            self.weights.gather(part)
        self.loss = loss.item()

    def forward(self, rows: Tensor, edges: Tensor) -> Tensor:
        sources = self.halo.meet(edges, len(rows), self.watch)
        for layer in self.model.layers:
            with self.watch.part("backward"):
                all_rows = WithHalo.apply(rows, self.halo)
            rows = layer(rows, all_rows, sources, edges[0])
            with self.watch.part("device"):
                device_wait(self.device_s / LAYERS * self.length * self._jitter.uniform(0.98, 1.02))
        return self.model.head(rows)


class Callback:
    """Something done around each batch."""

    def on_batch_start(self, trainer: Trainer) -> None: ...

    def on_batch_end(self, trainer: Trainer) -> None: ...


class Timing(Callback):
    def on_batch_start(self, trainer: Trainer) -> None:
        trainer.watch.begin()


class Orders(Callback):
    """Follows the control file."""

    def __init__(self, path: Path, rank: int, world: int) -> None:
        self._control, self._lengths = Control(path), Lengths(rank, world)

    def on_batch_start(self, trainer: Trainer) -> None:
        orders = self._control.orders
        if self._control.poll(trainer.step):
            orders = self._control.orders
            for part in (trainer.features, self._lengths, trainer.loader):
                part.follow(orders)
        if trainer.step == orders.get("at"):
            trainer.build(orders["width"], orders["device"])
        trainer.length = self._lengths.of_step(trainer.step)


class History(Callback):
    """The losses, under a lock that an uploading thread shares."""

    def __init__(self) -> None:
        self._losses: collections.deque[float] = collections.deque(maxlen=PRINTED_EVERY)

    def on_batch_end(self, trainer: Trainer) -> None:
        self.remember(trainer.loss, trainer.features.metrics_thread.lock)
        if trainer.rank == 0 and trainer.step % PRINTED_EVERY == 0:
            print(f"step {trainer.step} loss {sum(self._losses) / len(self._losses):.4f}", flush=True)

    def remember(self, loss: float, lock: threading.Lock) -> None:
        with lock:
            self._losses.append(loss)
        slow["remember"]()


class Averaging(Callback):
    """Rank 0 keeps the averaged weights; the others get them now and then."""

    def on_batch_end(self, trainer: Trainer) -> None:
        weights = trainer.weights
        if trainer.rank == 0:
            weights.average.lerp_(weights.flat, 1 - DECAY)
        if trainer.step % AVERAGED_EVERY == AVERAGED_EVERY - 1:
            with trainer.watch.part("backward"):
                dist.broadcast(weights.average, 0)


class Closing(Callback):
    """What comes after everything else: housekeeping, and the step's own times."""

    def on_batch_end(self, trainer: Trainer) -> None:
        trainer.features.after_step(trainer.step)
        trainer.watch.end(trainer.step)


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    orders = Orders(args.dir / f"rank{rank}.control", rank, world)
    Trainer(args, rank, world, [Timing(), orders, History(), Averaging(), Closing()]).fit()


if __name__ == "__main__":
    run(train)
