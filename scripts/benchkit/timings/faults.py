"""What is wrong with a simulated job, and when: plans with their culprits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchkit.timings.job import BACKWARD_S, FORWARD_S, LOAD_S, MESSAGE_S, OPTIMIZER_S, REPLICAS_S, Layout, Plan
from rankscope.probes.base.arrays import Floats

BUSY_S = LOAD_S + FORWARD_S + BACKWARD_S + OPTIMIZER_S
NOBODY, FAULT, LINK, UNEVEN = "nobody", "fault", "link", "uneven"


@dataclass(frozen=True, slots=True)
class Wrong:
    """A plan and its truth. `ranks`: the culprits; `when`: how much of the fault there is in each step, 0..1."""

    plan: Plan
    truth: str
    ranks: tuple[int, ...]
    when: Floats


Timing = Callable[[int], Floats]


def always(steps: int) -> Floats:
    return np.ones(steps)


def from_the_middle(steps: int) -> Floats:
    return (np.arange(steps) >= int(0.45 * steps)).astype(np.float64)


def episode(steps: int) -> Floats:
    """A quarter of the steps, in one piece."""
    first = int(0.4 * steps)
    at = np.arange(steps)
    return ((at >= first) & (at < first + steps // 4)).astype(np.float64)


def now_and_then(steps: int) -> Floats:
    """Every tenth step, five times as bad."""
    return np.where(np.arange(steps) % 10 == 7, 5.0, 0.0)


def growing(steps: int) -> Floats:
    return np.linspace(0, 2, steps)


TIMINGS: dict[str, Timing] = {
    "always": always, "from the middle": from_the_middle, "episode": episode, "now and then": now_and_then,
    "growing": growing,
}  # fmt: skip


def healthy(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    return Wrong(Plan.nothing(layout, len(when)), NOBODY, (), when)


def slow_device(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    """Everything that one rank computes takes longer."""
    return _slower(layout, when, dose, (int(rng.integers(layout.ranks)),))


def two_devices(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    who = rng.choice(layout.ranks, 2, replace=False)
    return _slower(layout, when, dose, tuple(sorted(int(each) for each in who)))


def slow_host(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    """All ranks of a host compute slower: its clock, its heat, a stranger."""
    host = int(rng.integers(int(layout.host().max()) + 1))
    return _slower(layout, when, dose, tuple(np.flatnonzero(layout.host() == host).tolist()))


def slow_input(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    """One rank's input comes late."""
    who = int(rng.integers(layout.ranks))
    plan = Plan.nothing(layout, len(when))
    plan.load_s[who] += dose * BUSY_S * when
    return Wrong(plan, FAULT, (who,), when)


def between_parts(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    """One rank is late by something around which nobody put a stopwatch."""
    who = int(rng.integers(layout.ranks))
    plan = Plan.nothing(layout, len(when))
    plan.untimed_s[who] += dose * BUSY_S * when
    return Wrong(plan, FAULT, (who,), when)


def slow_link(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    """What leaves one host takes longer: messages, collectives."""
    host = int(rng.integers(int(layout.host().max()) + 1))
    plan = Plan.nothing(layout, len(when))
    base = MESSAGE_S * layout.batches if layout.stages > 1 else REPLICAS_S
    plan.links[host] += dose * BUSY_S / base * when
    return Wrong(plan, LINK, tuple(np.flatnonzero(layout.host() == host).tolist()), when)


def heavy_stage(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    """The last stage has more layers; nobody's fault, and always so."""
    plan = Plan.nothing(layout, len(when))
    last = layout.stage() == layout.stages - 1
    plan.speed[last] *= 1 + dose
    return Wrong(plan, UNEVEN, tuple(np.flatnonzero(last).tolist()), np.ones(len(when)))


def lengths(layout: Layout, when: Floats, dose: float, rng: np.random.Generator) -> Wrong:
    """In each step other replicas have the longer sequences."""
    plan = Plan.nothing(layout, len(when))
    long = rng.random(plan.length.shape) < 0.3
    return Wrong(replace(plan, length=np.where(long, 1 + dose, 1.0)), UNEVEN, (), when)


KINDS: dict[str, Callable[[Layout, Floats, float, np.random.Generator], Wrong]] = {
    "healthy": healthy, "device": slow_device, "two devices": two_devices, "host": slow_host, "input": slow_input,
    "between": between_parts, "link": slow_link, "heavy stage": heavy_stage, "lengths": lengths,
}  # fmt: skip


def _slower(layout: Layout, when: Floats, dose: float, who: tuple[int, ...]) -> Wrong:
    plan = Plan.nothing(layout, len(when))
    plan.speed[list(who)] *= 1 + dose * when
    return Wrong(plan, FAULT, who, when)
