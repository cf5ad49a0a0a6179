"""Work that is unevenly spread, by design: nobody is guilty, and the status `imbalance` is the right answer."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.launch import Plan

_LENGTHS = Truth("imbalance", {"workload": frozenset({"data-imbalance"})})


class LongSequences(Fault):
    """One rank always gets longer sequences: all that it does with them takes longer, the device too."""

    name = "long-sequences"
    group = "workload"
    order_name: ClassVar[str] = "length"

    def inject(self) -> Truth:
        # The part of the step that grows with the sequence: all but the exchange of the gradients.
        work_s = self.job.plan.device_ms / 1000 + self.healthy.own_s[self.victim]
        times = 1 + self.extra_s / work_s
        for rank in self._ranks():
            self.job.order(rank, {self.order_name: times})
        return replace(_LENGTHS, ranks=(self.victim,))

    def _ranks(self) -> tuple[int, ...]:
        return (self.victim,)


class InTurn(LongSequences):
    """In each step another rank, drawn by lot, has the longer sequences."""

    name = "in-turn"
    order_name = "in_turn"

    def _ranks(self) -> tuple[int, ...]:
        return tuple(range(self.job.plan.ranks))

    def inject(self) -> Truth:
        return replace(super().inject(), ranks=())


class HeavyStage(Fault):
    """The last stage of a pipeline computes longer than the others."""

    name = "heavy-stage"
    group = "workload"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        # An even number of ranks, at least two in a stage. No rank has a core of its own: it would be faster than the other of its stage.
        ranks = max(4, plan.ranks - plan.ranks % 2)
        return replace(plan, ranks=ranks, hosts=min(plan.hosts, 2), lone=plan.lone % ranks, stages=2, free_cores=True)

    def inject(self) -> Truth:
        plan = self.job.plan
        device_s = plan.device_ms / 1000 / plan.stages
        last = tuple(rank for rank in range(plan.ranks) if plan.stage_of(rank) == plan.stages - 1)
        for rank in last:
            self.job.order(rank, {"heavier": 1 + self.added_s / device_s})
        return Truth("imbalance", {"workload": frozenset({"stage-imbalance"})}, last)
