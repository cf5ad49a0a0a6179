"""Robots that learn to carry parcels: another shape of the lab's job, with the same options and files.

There are no samples: levels are read, and the policy itself walks through them to make what it learns from. Advantages are measured
against those of all ranks. A step is two updates, and the optimizer is only on rank 0: it gets the summed gradients and sends everyone
the weights that come of them. Every fortieth step rank 0 hears how all fared and says how much they are to try from then on.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from features import Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SIDE, SIGHT = 10, 2  # cells of a level, how far a robot sees
WALLS = 56  # of 256 codes
MOVES = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))
SEEN = (2 * SIGHT + 1) ** 2 + 3
ROWS_PER_ROBOT, EFFORT_PER_TICK, LEAST_TICKS = 6, 7, 3
DELIVERED, PER_CELL, PER_TICK = 5.0, 0.3, -0.05
DISCOUNT, SMOOTHING = 0.97, 0.95
UPDATES, CLIPPED, VALUE_SHARE = 2, 0.2, 0.5
RATE, MOST_NORM = 7e-4, 0.5
HEARD_EVERY, USUAL_CURIOSITY = 40, 0.01

Batch = tuple[Tensor, Tensor]  # what was seen; move, its likelihood, advantage and worth


class Levels:
    """The levels of one rank, read past the page cache."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._places = places(folder, block_bytes)

    def read_levels(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        block = os.pread(fd, self._block_bytes, min(offset, size - self._block_bytes))
        slow["read_levels"]()
        return block


def cut_levels(block: bytes, count: int) -> np.ndarray:
    """Where the walls are, with a wall around each level that is as wide as a robot sees."""
    codes = np.frombuffer(block, dtype=np.uint8, count=count * SIDE * SIDE).reshape(count, SIDE, SIDE)
    walls = np.ones((count, SIDE + 2 * SIGHT, SIDE + 2 * SIGHT), dtype=bool)
    walls[:, SIGHT:-SIGHT, SIGHT:-SIGHT] = codes < WALLS
    slow["cut_levels"]()
    return walls


@dataclass
class Task:
    """One robot: where it is, where the parcels come from and are due, and how far each cell is from there."""

    walls: np.ndarray
    at: tuple[int, int]
    due: tuple[int, int]
    away: dict[tuple[int, int], int]
    begin: tuple[int, int]

    def move(self, move: int) -> float:
        """The reward; who delivers begins anew with the next parcel."""
        row, column = self.at[0] + MOVES[move][0], self.at[1] + MOVES[move][1]
        if (row, column) not in self.away:
            return 2 * PER_TICK
        nearer = self.away[self.at] - self.away[row, column]
        delivers = (row, column) == self.due
        self.at = self.begin if delivers else (row, column)
        return PER_TICK + PER_CELL * nearer + DELIVERED * delivers


def place_parcels(levels: np.ndarray, rng: random.Random) -> list[Task]:
    tasks = []
    for walls in levels:
        walls[SIDE // 2 + SIGHT, SIDE // 2 + SIGHT] = False  # there is a free cell
        due = rng.choice([(int(row), int(column)) for row, column in np.argwhere(~walls)])
        tasks.append(Task(walls, due, due, {}, due))
    slow["place_parcels"]()
    return tasks


def measure_ways(tasks: list[Task], rng: random.Random) -> None:
    """Breadth first from where each parcel is due; the robot starts anywhere that has a way there."""
    for task in tasks:
        free = {cell for cell, wall in np.ndenumerate(task.walls) if not wall}
        task.away = {task.due: 0}
        ahead = deque([task.due])
        while ahead:
            row, column = ahead.popleft()
            for down, right in MOVES[1:]:
                cell = row + down, column + right
                if cell in free and cell not in task.away:
                    task.away[cell] = task.away[row, column] + 1
                    ahead.append(cell)
        task.at = task.begin = rng.choice(list(task.away))
    slow["measure_ways"]()


def look_around(tasks: list[Task]) -> Tensor:
    views = np.empty((len(tasks), SEEN), dtype=np.float32)
    for view, task in zip(views, tasks, strict=True):
        row, column = task.at
        view[:-3] = task.walls[row - SIGHT : row + SIGHT + 1, column - SIGHT : column + SIGHT + 1].ravel()
        view[-3:] = (task.due[0] - row) / SIDE, (task.due[1] - column) / SIDE, task.away[task.at] / SIDE
    return torch.from_numpy(views)


class Policy(nn.Module):
    """What to do, and what that will be worth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = width // 2
        self.trunk = nn.Sequential(nn.Linear(SEEN, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.actor, self.critic = nn.Linear(hidden, len(MOVES)), nn.Linear(hidden, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        known = self.trunk(seen)
        return self.actor(known).log_softmax(dim=-1), self.critic(known).squeeze(-1)


@dataclass
class Rollout:
    """By tick and robot."""

    seen: list[Tensor]
    moves: list[Tensor]
    likelihoods: list[Tensor]
    values: list[Tensor]
    rewards: list[list[float]]


@torch.no_grad()
def collect_rollout(policy: Policy, tasks: list[Task], ticks: int) -> Rollout:
    found = Rollout([], [], [], [], [])
    for _ in range(ticks):
        seen = look_around(tasks)
        likelihoods, values = policy(seen)
        moves = torch.multinomial(likelihoods.exp(), 1)
        found.seen.append(seen)
        found.moves.append(moves.squeeze(1))
        found.likelihoods.append(likelihoods.gather(1, moves).squeeze(1))
        found.values.append(values)
        found.rewards.append([task.move(move) for task, (move,) in zip(tasks, moves.tolist(), strict=True)])
    found.values.append(policy(look_around(tasks))[1])
    slow["collect_rollout"]()
    return found


def estimate_advantages(rollout: Rollout) -> np.ndarray:
    """Generalised: from the last tick to the first."""
    rewards = np.asarray(rollout.rewards, dtype=np.float32)
    values = torch.stack(rollout.values).numpy()
    advantages, later = np.empty_like(rewards), np.zeros(rewards.shape[1], dtype=np.float32)
    for tick in reversed(range(len(rewards))):
        surprise = rewards[tick] + DISCOUNT * values[tick + 1] - values[tick]
        later = surprise + DISCOUNT * SMOOTHING * later
        advantages[tick] = later
    slow["estimate_advantages"]()
    return advantages


def flatten_rollout(rollout: Rollout, advantages: np.ndarray) -> Batch:
    gains = torch.from_numpy(advantages)
    worth = gains + torch.stack(rollout.values[:-1])
    figures = (torch.stack(rollout.moves).float(), torch.stack(rollout.likelihoods), gains, worth)
    batch = torch.cat(rollout.seen), torch.stack([one.flatten() for one in figures], dim=1)
    slow["flatten_rollout"]()
    return batch


def normalise_advantages(batch: Batch, watch: Stopwatch) -> Batch:
    """Against the mean and the spread of all ranks."""
    seen, figures = batch
    gains = figures[:, 2].double()
    sums = torch.stack((torch.tensor(float(len(gains)), dtype=torch.float64), gains.sum(), gains.square().sum()))
    with watch.part("backward"):
        dist.all_reduce(sums)
    count, total, squares = sums.tolist()
    mean = total / count
    spread = max(squares / count - mean**2, 1e-6) ** 0.5
    figures[:, 2] = ((gains - mean) / spread).float()
    slow["normalise_advantages"]()
    return seen, figures


def surrogate_loss(policy: Policy, seen: Tensor, figures: Tensor, curiosity: float) -> Tensor:
    moves, before, gains, worth = figures.unbind(dim=1)
    likelihoods, values = policy(seen)
    ratio = (likelihoods.gather(1, moves.long().unsqueeze(1)).squeeze(1) - before).exp()
    better = torch.minimum(ratio * gains, ratio.clamp(1 - CLIPPED, 1 + CLIPPED) * gains).mean()
    tried = -(likelihoods.exp() * likelihoods).sum(dim=1).mean()
    return VALUE_SHARE * (values - worth).square().mean() - better - curiosity * tried


class Walks:
    """What one rank learns from, made by itself or by its workers (with the policy of when they were started)."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self._robots, self._ticks = args.batch / ROWS_PER_ROBOT, max(LEAST_TICKS, args.crops // EFFORT_PER_TICK)
        self._levels = Levels(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._rng = random.Random(rank)
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._has_workers = args.workers > 0
        self.policy = Policy(args.width)
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._walk(self._levels.read_levels(), 1.0)

    def _walk(self, block: bytes, length: float) -> Batch:
        robots = max(2, int(self._robots * length + self._rng.random()))  # right on the average
        tasks = place_parcels(cut_levels(block, robots), self._rng)
        measure_ways(tasks, self._rng)
        rollout = collect_rollout(self.policy, tasks, self._ticks)
        return flatten_rollout(rollout, estimate_advantages(rollout))

    def next_batch(self, length: float, watch: Stopwatch) -> Batch:
        with watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self._levels.read_levels()
        with watch.part("prepare"):
            return normalise_advantages(found if self._has_workers else self._walk(found, length), watch)


class Learner:
    """The weights, which all have; and the optimizer, which only rank 0 has."""

    def __init__(self, policy: Policy, rank: int, world: int, device_s: float, watch: Stopwatch) -> None:
        self.policy, self.device_s, self.curiosity = policy, device_s, USUAL_CURIOSITY
        self._rank, self._world, self._watch = rank, world, watch
        self._parameters = list(policy.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=RATE, eps=1e-5) if rank == 0 else None
        self._publish()

    def learn(self, batch: Batch, longer: float) -> float:
        """One pass over what was walked, an update for each part of it; the mean loss."""
        order, losses = torch.randperm(len(batch[0])), []
        for chosen in order.chunk(UPDATES):
            with self._watch.part("forward"):
                loss = surrogate_loss(self.policy, batch[0][chosen], batch[1][chosen], self.curiosity)
            with self._watch.part("device"):
                device_wait(self.device_s * longer / UPDATES)
            with self._watch.part("backward"):
                loss.backward()
                gradient = parameters_to_vector([one.grad for one in self._parameters])
                dist.reduce(gradient, dst=0)
            with self._watch.part("optimizer"):
                self._update(gradient)
            with self._watch.part("backward"):
                self._publish()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def _update(self, gradient: Tensor) -> None:
        if self._optimizer is not None:
            gradients = (gradient / self._world).split([one.numel() for one in self._parameters])
            for one, its in zip(self._parameters, gradients, strict=True):
                one.grad = its.view_as(one)
            nn.utils.clip_grad_norm_(self._parameters, MOST_NORM)
            self._optimizer.step()
        self.policy.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _publish(self) -> None:
        weights = parameters_to_vector(self._parameters)
        dist.broadcast(weights, src=0)
        vector_to_parameters(weights, self._parameters)

    def hear(self, gained: float) -> float:
        """The mean over all ranks, on rank 0; where that falls, all are told to try more."""
        with self._watch.part("backward"):
            mine = torch.tensor([gained])
            all_of_them = [torch.empty(1) for _ in range(self._world)] if self._rank == 0 else None
            dist.gather(mine, all_of_them, dst=0)
            mean = float(torch.cat(all_of_them).mean()) if all_of_them else 0.0
            said = torch.tensor([USUAL_CURIOSITY * (1.0 if mean > 0 else 2.0)])
            dist.broadcast(said, src=0)
        self.curiosity = float(said)
        return mean


class Returns:
    """What walks were worth, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._recent: deque[float] = deque(maxlen=HEARD_EVERY)

    def note_return(self, worth: float) -> None:
        with self._lock:
            self._recent.append(worth)
        slow["note_return"]()

    def mean(self) -> float:
        return sum(self._recent) / len(self._recent)


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, walks = features_of(args, rank), Lengths(rank, world), Walks(args, rank)
    returns, jitter = Returns(features.metrics_thread.lock), random.Random(rank)
    torch.manual_seed(rank)  # the first weights are those of rank 0; the moves are each rank's own
    learner = Learner(walks.policy, rank, world, args.device_ms / 1000, watch)
    for step in range(args.steps) if args.steps else itertools.count():
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, walks.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            walks.policy = Policy(control.orders["width"])
            device_s = args.device_ms / 1000 * control.orders["device"]
            learner = Learner(walks.policy, rank, world, device_s, watch)
        length = lengths.of_step(step)
        batch = walks.next_batch(length, watch)
        with watch.part("prepare"):
            features.before_forward()
        loss = learner.learn(batch, length * jitter.uniform(0.98, 1.02))
        returns.note_return(float(batch[1][:, 3].mean()))
        if step % HEARD_EVERY == HEARD_EVERY - 1:
            mean = learner.hear(returns.mean())
            if rank == 0:
                print(f"update {UPDATES * step} worth {mean:.3f} loss {loss:.3f}", flush=True)
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
