"""A potential for molecules, by energies and forces: another shape of the lab's job, with the same options and files.

Molecules of many sizes are picked until a budget of atoms is full, so that all ranks have as much to do; neighbours are found with cells in
plain Python. A step is three micro-batches, and nobody waits for anybody until the third is done: then each rank gets the summed gradients
of its own slice of the weights, updates that with the only copy of its optimizer's state, and all put the slices together. Every
twenty-fifth step all judge molecules that were held back, and learn slower where that no longer gets better.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import random
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn

FEWEST_ATOMS, SIZES, ATOM_BYTES = 5, 20, 4
ELEMENTS, BOND, CUTOFF = 8, 1.4, 2.6  # kinds of atoms; in angstrom
DEPTH, STIFFNESS, AT_REST = 0.4, 1.3, 1.5  # of the pair potential that gives the labels
ATOMS_PER_EFFORT = 2
MICRO_BATCHES = 3
RADIAL, LAYERS = 20, 2
FORCES_SHARE = 0.9
RATE, MOST_NORM = 1e-3, 5.0
VALIDATED_EVERY, PATIENCE, SMOOTHED_OVER = 25, 4, 50

NEARBY = tuple(itertools.product((-1, 0, 1), repeat=3))


class MicroBatch(NamedTuple):
    """Atoms of several molecules in one row; pairs of neighbours, each in both directions."""

    elements: Tensor
    positions: Tensor
    pairs: Tensor
    molecule: Tensor  # of each atom
    energies: Tensor
    forces: Tensor


@dataclass
class Molecule:
    elements: np.ndarray
    positions: np.ndarray
    pairs: np.ndarray
    energy: float
    forces: np.ndarray


class Trajectories:
    """Conformers on this rank's disk, read past the page cache."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._places = places(folder, block_bytes)

    def read_trajectory(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        block = os.pread(fd, self._block_bytes, min(offset, size - self._block_bytes))
        slow["read_trajectory"]()
        return block


def pick_conformers(block: bytes, atoms: int) -> list[bytes]:
    """As many as the budget of atoms allows; the last one is cut to what is left of it."""
    found, at = [], 0
    while atoms >= FEWEST_ATOMS:
        size = min(atoms, FEWEST_ATOMS + block[at] % SIZES)
        found.append(block[at + 1 : at + 1 + ATOM_BYTES * size])
        at += 1 + ATOM_BYTES * size
        atoms -= size
    slow["pick_conformers"]()
    return found


def decode_geometries(conformers: list[bytes]) -> list[Molecule]:
    """Each atom a bond away from the one before."""
    molecules = []
    for codes in conformers:
        atoms = np.frombuffer(codes, dtype=np.uint8).reshape(-1, ATOM_BYTES)
        away = atoms[:, 1:].astype(np.float32) - 127.5
        bonds = BOND * away / np.linalg.norm(away, axis=1, keepdims=True)
        positions = np.cumsum(bonds, axis=0)
        none = np.empty((2, 0), dtype=np.int64)
        molecules.append(
            Molecule((atoms[:, 0] % ELEMENTS).astype(np.int64), positions, none, 0.0, np.zeros_like(bonds))
        )
    slow["decode_geometries"]()
    return molecules


def rotate_at_random(molecules: list[Molecule], rng: np.random.Generator) -> None:
    """About their centre; energies must not depend on it."""
    for molecule in molecules:
        rotation, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        centred = molecule.positions - molecule.positions.mean(axis=0)
        molecule.positions = (centred @ rotation).astype(np.float32)
    slow["rotate_at_random"]()


def find_neighbours(molecules: list[Molecule]) -> None:
    """All pairs nearer than the cutoff, by cells as wide as that."""
    for molecule in molecules:
        points = molecule.positions.tolist()
        cells: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for atom, (x, y, z) in enumerate(points):
            cells[int(x // CUTOFF), int(y // CUTOFF), int(z // CUTOFF)].append(atom)
        pairs = []
        for (i, j, k), inside in cells.items():
            around = [other for a, b, c in NEARBY for other in cells.get((i + a, j + b, k + c), ())]
            for atom in inside:
                x, y, z = points[atom]
                for other in around:
                    u, v, w = points[other]
                    if other != atom and (u - x) ** 2 + (v - y) ** 2 + (w - z) ** 2 < CUTOFF**2:
                        pairs.append((atom, other))
        molecule.pairs = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    slow["find_neighbours"]()


def label_with_reference(molecules: list[Molecule]) -> None:
    """Energy and forces by a Morse potential that depends on the elements."""
    for molecule in molecules:
        first, second = molecule.pairs
        apart = molecule.positions[first] - molecule.positions[second]
        distance = np.linalg.norm(apart, axis=1) + 1e-3
        kinds = molecule.elements[first] + molecule.elements[second]
        depth = DEPTH * (1 + kinds / (2 * ELEMENTS))
        decay = np.exp(-STIFFNESS * np.maximum(distance - AT_REST, -1.0))
        molecule.energy = float((depth * (1 - decay) ** 2 - depth).sum()) / 2
        slope = 2 * depth * (1 - decay) * decay * STIFFNESS
        np.add.at(molecule.forces, first, (-(slope / distance)[:, None] * apart).astype(np.float32))
    slow["label_with_reference"]()


def deal_conformers(molecules: list[Molecule]) -> list[list[Molecule]]:
    """The largest first, each to the micro-batch that has the fewest atoms."""
    hands: list[list[Molecule]] = [[] for _ in range(MICRO_BATCHES)]
    fewest = [(0, number) for number in range(MICRO_BATCHES)]
    for molecule in sorted(molecules, key=lambda one: len(one.elements), reverse=True):
        atoms, number = heapq.heappop(fewest)
        hands[number].append(molecule)
        heapq.heappush(fewest, (atoms + len(molecule.elements), number))
    slow["deal_conformers"]()
    return hands


def join_atoms(hands: list[list[Molecule]]) -> list[MicroBatch]:
    batches = []
    for hand in hands:
        sizes = [len(one.elements) for one in hand]
        begins = itertools.accumulate(sizes[:-1], initial=0)
        columns = (
            np.concatenate([one.elements for one in hand]),
            np.concatenate([one.positions for one in hand]),
            np.concatenate([one.pairs + begin for one, begin in zip(hand, begins, strict=True)], axis=1),
            np.repeat(np.arange(len(hand)), sizes),
            np.array([one.energy for one in hand], dtype=np.float32),
            np.concatenate([one.forces for one in hand]),
        )
        batches.append(MicroBatch(*map(torch.from_numpy, columns)))
    slow["join_atoms"]()
    return batches


class Conformers:
    """What one rank learns from in a step, from its own hands or from those of its workers."""

    def __init__(self, args: argparse.Namespace, rank: int, watch: Stopwatch) -> None:
        self._atoms = max(MICRO_BATCHES * SIZES, args.crops * ATOMS_PER_EFFORT * args.batch / 64)
        self._trajectories = Trajectories(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._rng, self._watch = np.random.default_rng(rank), watch
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._has_workers = args.workers > 0
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def next_step(self, length: float) -> list[MicroBatch]:
        with self._watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self._trajectories.read_trajectory()
        with self._watch.part("prepare"):
            return found if self._has_workers else self._prepare(found, length)

    def _in_worker(self, number: int) -> list[MicroBatch]:
        self._its_control.poll(number)
        return self._prepare(self._trajectories.read_trajectory(), 1.0)

    def _prepare(self, block: bytes, length: float) -> list[MicroBatch]:
        molecules = decode_geometries(pick_conformers(block, int(self._atoms * length)))
        rotate_at_random(molecules, self._rng)
        find_neighbours(molecules)
        label_with_reference(molecules)
        return join_atoms(deal_conformers(molecules))


class Interaction(nn.Module):
    """Each atom hears its neighbours, by a filter that depends on how far they are."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.filter = nn.Linear(RADIAL, inner)
        self.said, self.heard = nn.Linear(inner, inner, bias=False), nn.Sequential(
            nn.Linear(inner, inner), nn.SiLU(), nn.Linear(inner, inner)
        )  # fmt: skip

    def forward(self, atoms: Tensor, radial: Tensor, pairs: Tensor) -> Tensor:
        messages = self.said(atoms)[pairs[1]] * self.filter(radial)
        return atoms + self.heard(torch.zeros_like(atoms).index_add(0, pairs[0], messages))


class Potential(nn.Module):
    """Each element has a readout of its own; all are computed at once, and one is taken."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width // 5
        self.kinds = nn.Embedding(ELEMENTS, inner)
        self.interactions = nn.ModuleList(Interaction(inner) for _ in range(LAYERS))
        self.readouts = nn.Linear(inner, ELEMENTS * (width // 4))
        self.weigh = nn.Parameter(torch.randn(ELEMENTS, width // 4) / width**0.5)
        self.register_buffer("centres", torch.linspace(0.0, CUTOFF, RADIAL))

    def forward(self, batch: MicroBatch, positions: Tensor) -> Tensor:
        """The energy of each molecule."""
        apart = positions[batch.pairs[0]] - positions[batch.pairs[1]]
        distance = (apart.square().sum(dim=1) + 1e-6).sqrt().unsqueeze(1)
        fades = 0.5 * (1 + torch.cos(distance * (torch.pi / CUTOFF)))
        radial = fades * torch.exp(-((distance - self.centres) ** 2) * (RADIAL / CUTOFF) ** 2 / 2)
        atoms = self.kinds(batch.elements)
        for interaction in self.interactions:
            atoms = interaction(atoms, radial, batch.pairs)
        by_element = (F.silu(self.readouts(atoms)).unflatten(1, self.weigh.shape) * self.weigh).sum(dim=-1)
        its_own = by_element.gather(1, batch.elements.unsqueeze(1)).squeeze(1)
        return torch.zeros(len(batch.energies)).index_add(0, batch.molecule, its_own)


def energy_and_force_loss(model: Potential, batch: MicroBatch) -> Tensor:
    """Forces are what the energy falls by as an atom moves, and are to be right as well."""
    positions = batch.positions.clone().requires_grad_()
    energies = model(batch, positions)
    (slope,) = torch.autograd.grad(energies.sum(), positions, create_graph=True)
    sizes = batch.molecule.bincount(minlength=len(energies))
    per_atom = F.huber_loss(energies / sizes, batch.energies / sizes)
    return (1 - FORCES_SHARE) * per_atom + FORCES_SHARE * F.huber_loss(-slope, batch.forces)


class ShardedAdam:
    """All weights in one flat row, of which each rank keeps the optimizer's state of its own slice only."""

    def __init__(self, model: nn.Module, rank: int, world: int, watch: Stopwatch) -> None:
        self._watch, self._world = watch, world
        parameters = list(model.parameters())
        count = sum(one.numel() for one in parameters)
        padded = -(-count // world) * world
        self._weights, self._gradient = torch.zeros(padded), torch.zeros(padded)
        at = 0
        for one in parameters:
            part = slice(at, at + one.numel())
            self._weights[part] = one.detach().flatten()
            one.data, one.grad = self._weights[part].view_as(one), self._gradient[part].view_as(one)
            at += one.numel()
        dist.broadcast(self._weights, src=0)
        self._own = nn.Parameter(self._weights.chunk(world)[rank].clone())
        self._own.grad = torch.zeros_like(self._own)
        self.adam = torch.optim.Adam([self._own], lr=RATE)

    def step(self) -> float:
        """Sum, clip, update, spread; the norm of the gradient."""
        own = self._own.grad
        with self._watch.part("backward"):
            dist.reduce_scatter_tensor(own, self._gradient)
        own /= self._world * MICRO_BATCHES
        square = own.square().sum()
        with self._watch.part("backward"):
            dist.all_reduce(square)
        norm = float(square.sqrt())
        own *= min(1.0, MOST_NORM / max(norm, 1e-6))
        self.adam.step()
        with self._watch.part("backward"):
            dist.all_gather_into_tensor(self._weights, self._own.detach())
        self._gradient.zero_()
        return norm


class Errors:
    """The latest losses, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.latest: deque[tuple[float, float]] = deque(maxlen=SMOOTHED_OVER)

    def append_errors(self, loss: float, norm: float) -> None:
        with self._lock:
            self.latest.append((loss, norm))
        slow["append_errors"]()


class Training:
    """The model and what changes it; begins anew with another width."""

    def __init__(self, width: int, device_s: float, rank: int, world: int, watch: Stopwatch) -> None:
        self._watch, self._device_s, self._world = watch, device_s, world
        self._jitter = random.Random(rank)
        self.model = Potential(width)
        self._optimizer = ShardedAdam(self.model, rank, world, watch)
        self._rate = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self._optimizer.adam, patience=PATIENCE, min_lr=RATE / 50
        )

    def learn(self, batches: list[MicroBatch], length: float) -> tuple[float, float]:
        total = 0.0
        for batch in batches:
            with self._watch.part("forward"):
                loss = energy_and_force_loss(self.model, batch)
            with self._watch.part("device"):
                device_wait(self._device_s * length * self._jitter.uniform(0.98, 1.02) / MICRO_BATCHES)
            with self._watch.part("backward"):
                loss.backward()
            total += loss.item() / MICRO_BATCHES
        with self._watch.part("optimizer"):
            return total, self._optimizer.step()

    def validate(self, batch: MicroBatch) -> float:
        """How far all are off, per molecule; where that stays, the rate falls for all alike."""
        with self._watch.part("forward"), torch.no_grad():
            off = (self.model(batch, batch.positions) - batch.energies).abs()
            found = torch.stack((off.sum(), torch.tensor(float(len(off)))))
        with self._watch.part("backward"):
            dist.all_reduce(found)
        mean = float(found[0] / found[1])
        self._rate.step(mean)
        return mean


def steps_of(args: argparse.Namespace) -> Iterator[int]:
    return iter(range(args.steps)) if args.steps else itertools.count()


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, conformers = features_of(args, rank), Lengths(rank, world), Conformers(args, rank, watch)
    errors = Errors(features.metrics_thread.lock)
    training = Training(args.width, args.device_ms / 1000, rank, world, watch)
    held_back: MicroBatch | None = None
    for step in steps_of(args):
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, conformers.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            device_s = args.device_ms / 1000 * control.orders["device"]
            training = Training(control.orders["width"], device_s, rank, world, watch)
        length = lengths.of_step(step)
        batches = conformers.next_step(length)
        held_back = held_back or batches[0]
        with watch.part("prepare"):
            features.before_forward()
        errors.append_errors(*training.learn(batches, length))
        if step % VALIDATED_EVERY == VALIDATED_EVERY - 1:
            off = training.validate(held_back)
            if rank == 0:
                loss, norm = np.mean(errors.latest, axis=0)
                print(f"step {step}: loss {loss:.4f}, norm {norm:.3f}, held back {off:.3f} eV off", flush=True)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
