"""Training in stages: each rank has some layers, activations go on to the next stage and gradients come back.

Ranks r, r + n/S, r + 2n/S … of n ranks in S stages are one pipeline; the ranks of a stage reduce their gradients together.
A batch goes through in parts (GPipe): all forward, then all backward. Order {"heavier": x}: the device of this rank computes
x times as long.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

FEATURES = 256
CLASSES = 64
PARTS = 4


@dataclass(frozen=True)
class Place:
    """Where a rank stands."""

    rank: int
    world: int
    stages: int

    @property
    def per_stage(self) -> int:
        return self.world // self.stages

    @property
    def stage(self) -> int:
        return self.rank // self.per_stage

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


class Stage(nn.Module):
    """The layers of one stage."""

    def __init__(self, place: Place, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES if place.is_first else width, width)
        self.leave = nn.Linear(width, CLASSES if place.is_last else width)

    def forward(self, values: Tensor) -> Tensor:
        return self.leave(torch.relu(self.enter(values)))


def train(
    place: Place, args: argparse.Namespace, load: Callable[[], tuple[Tensor, Tensor]], control: Any, recorder: Any
) -> None:
    """Train for ever, or for args.steps. `load` makes a batch; the last stage takes its labels from its own shard."""
    groups = [
        dist.new_group(range(stage * place.per_stage, (stage + 1) * place.per_stage)) for stage in range(place.stages)
    ]
    model = Stage(place, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    jitter = random.Random(place.rank)
    clock = time.monotonic
    part_s = args.device_ms / 1000 / place.stages / PARTS
    for step in range(args.steps) if args.steps else itertools.count():
        control.poll(step)
        device_s = part_s * control.orders.get("heavier", 1.0)
        marks = [clock()]
        cpu = time.process_time()
        inputs, labels = load()
        marks += [clock(), clock()]
        entered, left = [], []
        for part in range(PARTS):
            values = inputs.tensor_split(PARTS)[part] if place.is_first else receive(place, args)
            values.requires_grad_(not place.is_first)
            result = model(values)
            device_wait(device_s * jitter.uniform(0.98, 1.02))
            if not place.is_last:
                dist.send(result.detach(), place.rank + place.per_stage)
            entered.append(values)
            left.append(result)
        marks += [clock(), clock()]
        for part in range(PARTS):
            if place.is_last:
                loss_of(left[part], labels.tensor_split(PARTS)[part]).backward()
            else:
                gradient = torch.empty_like(left[part])
                dist.recv(gradient, place.rank + place.per_stage)
                left[part].backward(gradient)
            gradient_of_input = entered[part].grad
            if gradient_of_input is not None:
                dist.send(gradient_of_input, place.rank - place.per_stage)
        average_gradients(model, groups[place.stage], place.per_stage)
        marks.append(clock())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(clock())
        marks.append(clock())
        recorder.write(step, marks, time.process_time() - cpu)


def receive(place: Place, args: argparse.Namespace) -> Tensor:
    values = torch.empty(args.batch // PARTS, args.width)
    dist.recv(values, place.rank - place.per_stage)
    return values


def average_gradients(model: nn.Module, group: Any, ranks: int) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients]).div_(ranks)
    dist.all_reduce(flat, group=group)
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def device_wait(seconds: float) -> None:
    """Stand for the time the accelerator computes: the CPU has nothing to do."""
    time.sleep(seconds)
