"""A simulated job: who computes, who waits for whom, and what a stopwatch around each part of the step would show.

Nothing of the diagnoser is used. Every rank has a clock. Computing moves it; a collective sets the clocks of its group to the latest of
them plus the transfer; a message sets the receiver's to the sender's plus the transfer, if that is later. What a stopwatch shows is the
difference of two readings of one clock: it contains whatever the rank waited for in between.

Ranks are numbered as Megatron does: stage, then replica, then shard (tensor parallel), eight or four to a host.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rankscope.probes.base.arrays import Floats, Ints

LAYERS = 4
LOAD_S, FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.004, 0.060, 0.120, 0.012  # of one rank and step, all micro-batches
SHARDS_S, REPLICAS_S, MESSAGE_S, NORM_S = 0.0004, 0.015, 0.0008, 0.0005  # transfers

OWN = ("load", "forward", "backward", "optimizer", "untimed")
STAYS = ("forward.shards", "backward.shards", "recv_forward", "recv_backward", "replicas", "norm")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the ranks of a job work together. `gathers`: weights are gathered before each layer (ZeRO-3), so that all keep step."""

    name: str
    shards: int = 1
    stages: int = 1
    replicas: int = 1
    batches: int = 1
    per_host: int = 4
    gathers: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.stages, self.replicas, self.shards

    @property
    def ranks(self) -> int:
        return self.stages * self.replicas * self.shards

    def host(self) -> Ints:
        return np.arange(self.ranks) // self.per_host

    def stage(self) -> Ints:
        return np.arange(self.ranks) // (self.replicas * self.shards)


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in each step, ranks x steps: `speed` lengthens all computing, the others add seconds; `links`: hosts x steps, what
    messages and collectives that leave the host take more. 1 or 0 where nothing happens. `length`: of the input, by replica."""

    speed: Floats
    load_s: Floats
    untimed_s: Floats
    backward_s: Floats
    links: Floats
    length: Floats

    @staticmethod
    def nothing(layout: Layout, steps: int) -> Plan:
        shape, hosts = (layout.ranks, steps), int(layout.host().max()) + 1
        return Plan(
            np.ones(shape),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape),
            np.ones((hosts, steps)),
            np.ones((layout.replicas, steps)),
        )


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations: of each piece of work, lasting of a rank, wandering of a host; and how often something stalls."""

    each: float = 0.02
    lasting: float = 0.004
    host: float = 0.0
    stalls: float = 0.0


@dataclass(slots=True)
class Trace:
    """Seconds, ranks x steps: of each part of the step, and of the whole step by each rank's own clock."""

    layout: Layout
    parts: dict[str, Floats]
    step: Floats = field(default_factory=lambda: np.empty((0, 0)))


def simulate(layout: Layout, plan: Plan, noise: Noise, rng: np.random.Generator) -> Trace:
    """All steps of the job."""
    steps = plan.speed.shape[1]
    trace = Trace(layout, {name: np.zeros((layout.ranks, steps)) for name in (*OWN, *STAYS)})
    trace.step = np.zeros((layout.ranks, steps))
    run = _Run(layout, plan, noise, rng, trace.parts)
    for step in range(steps):
        begin = run.clock.copy()
        run.step(step)
        trace.step[:, step] = (run.clock - begin).reshape(-1)
    return trace


class _Run:
    """The clocks of all ranks, as stages x replicas x shards."""

    def __init__(
        self, layout: Layout, plan: Plan, noise: Noise, rng: np.random.Generator, parts: dict[str, Floats]
    ) -> None:
        self.layout, self.plan, self.noise, self.rng = layout, plan, noise, rng
        self.parts = {name: part.reshape(*layout.shape, -1) for name, part in parts.items()}
        self.clock = np.zeros(layout.shape)
        self.at = 0
        self._lasting = np.exp(rng.normal(0, noise.lasting, layout.shape)) if noise.lasting else np.ones(layout.shape)
        self._wander = np.zeros(int(layout.host().max()) + 1)
        self._host = layout.host().reshape(layout.shape)
        self._leaves = {axis: np.ptp(self._host, axis, keepdims=True) > 0 for axis in (1, 2)}

    def step(self, number: int) -> None:
        self.at = number
        self._wander = 0.9 * self._wander + self.rng.normal(0, self.noise.host, len(self._wander)) * np.sqrt(1 - 0.81)
        # Of this step, by rank.
        self._slower = np.exp(self._wander)[self._host]
        self._speed = self.plan.speed[:, number].reshape(self.layout.shape)
        self._length = self.plan.length[:, number][None, :, None]
        self._links = self.plan.links[:, number][self._host]
        self._carried = {
            axis: np.where(leaves, self._links.max(axis, keepdims=True), 1.0) for axis, leaves in self._leaves.items()
        }
        every = slice(None)
        self.own("load", LOAD_S, every, plain=True)
        self._add("load", self.plan.load_s[:, number])
        self._add("untimed", self.plan.untimed_s[:, number])
        if self.layout.stages > 1:
            self._pipeline()
        else:
            for _ in range(self.layout.batches):
                self._whole("forward", FORWARD_S)
                self._whole("backward", BACKWARD_S)
        self._add("backward", self.plan.backward_s[:, number])
        if self.layout.replicas > 1:
            self.together("replicas", 1, REPLICAS_S, every)
        if self.layout.stages > 1:
            self._norm()
        self.own("optimizer", OPTIMIZER_S, every)

    # ---- parts of a step ---------------------------------------------------------------------------------------------

    def _whole(self, name: str, seconds: float) -> None:
        each = seconds / self.layout.batches / LAYERS
        for _ in range(LAYERS):
            if self.layout.gathers:
                self.together("replicas", 1, REPLICAS_S / LAYERS / 2, slice(None))
            self.own(name, each, slice(None))
            if self.layout.shards > 1:
                self.together(f"{name}.shards", 2, SHARDS_S, slice(None))

    def _pipeline(self) -> None:
        """One forward, one backward (1F1B): each stage does its list in order, each piece as soon as its input is there."""
        stages, batches = self.layout.stages, self.layout.batches
        order = [_one_forward_one_backward(stage, stages, batches) for stage in range(stages)]
        done: dict[tuple[str, int, int], Floats] = {}
        place = [0] * stages
        while any(place[stage] < len(order[stage]) for stage in range(stages)):
            for stage in range(stages):
                while place[stage] < len(order[stage]):
                    name, batch = order[stage][place[stage]]
                    before = stage - 1 if name == "forward" else stage + 1
                    needs = 0 <= before < stages
                    if needs and (name, before, batch) not in done:
                        break
                    if needs:
                        self._receive(f"recv_{name}", stage, before, done[name, before, batch])
                    each = (FORWARD_S if name == "forward" else BACKWARD_S) / batches
                    self.own(name, each, slice(stage, stage + 1))
                    if self.layout.shards > 1:
                        self.together(f"{name}.shards", 2, SHARDS_S, slice(stage, stage + 1))
                    done[name, stage, batch] = self.clock[stage].copy()
                    place[stage] += 1

    def _receive(self, name: str, stage: int, sender: int, sent: Floats) -> None:
        apart = self._host[stage] != self._host[sender]
        slower = np.maximum(self._links[stage], self._links[sender])
        arrives = sent + MESSAGE_S * np.where(apart, slower, 1.0) * self._jitter(sent.shape)
        got = np.maximum(self.clock[stage], arrives)
        self._count(name, slice(stage, stage + 1), (got - self.clock[stage])[None])
        self.clock[stage] = got

    def _norm(self) -> None:
        end = self.clock.max() + NORM_S
        self._count("norm", slice(None), end - self.clock)
        self.clock[:] = end

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def own(self, name: str, seconds: float, stages: slice, plain: bool = False) -> None:
        """The rank's own work. `plain`: what it reads, and not what it computes: neither slower on a slow device nor with longer input."""
        shape = self.clock[stages].shape
        took = seconds * self._lasting[stages] * self._jitter(shape)
        if not plain:
            took = took * self._speed[stages] * self._length
        stall = self.rng.random(shape) < self.noise.stalls
        took = took * self._slower[stages] + np.where(stall, self.rng.exponential(0.02, shape), 0.0)
        self._count(name, stages, took)
        self.clock[stages] += took

    def together(self, name: str, axis: int, seconds: float, stages: slice) -> None:
        """A collective of all ranks along this axis."""
        clock = self.clock[stages]
        one = clock.max(axis, keepdims=True)
        end = one + seconds * self._carried[axis][stages] * self._jitter(one.shape)
        self._count(name, stages, end - clock)
        self.clock[stages] = end

    def _add(self, name: str, seconds: Floats) -> None:
        more = seconds.reshape(self.layout.shape)
        self._count(name, slice(None), more)
        self.clock += more

    def _count(self, name: str, stages: slice, seconds: Floats) -> None:
        self.parts[name][stages, :, :, self.at] += seconds

    def _jitter(self, shape: tuple[int, ...]) -> Floats:
        return np.asarray(np.exp(self.rng.normal(0, self.noise.each, shape)), dtype=np.float64)


def _one_forward_one_backward(stage: int, stages: int, batches: int) -> list[tuple[str, int]]:
    ahead = min(stages - 1 - stage, batches)
    order = [("forward", batch) for batch in range(ahead)]
    for batch in range(batches - ahead):
        order += [("forward", ahead + batch), ("backward", batch)]
    return order + [("backward", batch) for batch in range(batches - ahead, batches)]
