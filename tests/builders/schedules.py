"""Timings of a job of dp pipelines x pp stages under 1F1B, played through micro-batch by micro-batch; what is wrong is an argument.

Rank p * dp + d is stage p of pipeline d. Forward takes 0.1 s and backward 0.2 s per micro-batch, messages 5 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rankscope.diagnose.infer.fleet.timings.steps_file import check
from rankscope.diagnose.infer.solve.judge_steps_file import judge_timings
from rankscope.diagnose.infer.verdict.contract import Verdict

FORWARD_S, BACKWARD_S, MESSAGE_S = 0.1, 0.2, 0.005


@dataclass(frozen=True)
class Schedule:
    """`work`: factor on every micro-batch, dp x pp x m, drawn anew for each step by a function of the generator."""

    dp: int = 4
    pp: int = 4
    batches: int = 8
    steps: int = 37
    seed: int = 0
    noise: float = 0.01
    lengths: float = 0.0  # standard deviation of the logarithm of the micro-batches' lengths
    slow: tuple[int, int] | None = None  # (pipeline, stage) half as slow again
    heavy_last: bool = False
    pause_s: float = 0.0
    pauses: float = 0.0  # share of the steps in which a rank pauses
    paused: tuple[int, int] | None = None  # the one that always does
    pauses_named: bool = True  # as 'gc'; else inside forward
    link: tuple[int, int] | None = None  # (pipeline, stage): messages between it and the next take this long
    link_s: float = 0.1
    roles: bool = True

    def rank(self, pipeline: int, stage: int) -> int:
        return stage * self.dp + pipeline

    def verdict(self) -> Verdict:
        table = pa.Table.from_pylist(list(self._rows()))
        return judge_timings(check(table if self.roles else table.drop_columns(["role"]), "file"), "job")

    def _rows(self) -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(self.seed)
        for step in range(self.steps):
            yield from self._step(step, rng)

    def _step(self, step: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        shape = (self.dp, self.pp, self.batches)
        length = np.exp(rng.normal(0, self.lengths, (self.dp, 1, self.batches)))
        factor = {way: length * np.exp(rng.normal(0, self.noise, shape)) for way in "FB"}
        for each in factor.values():
            if self.heavy_last:
                each[:, -1] *= 1.6
            if self.slow:
                each[self.slow] *= 1.5
        pause = np.where(rng.random((self.dp, self.pp)) < self.pauses, self.pause_s, 0.0)
        if self.paused:
            pause[self.paused] = self.pause_s
        at = rng.integers(0, self.batches, (self.dp, self.pp))
        played = [self._play(d, factor, pause[d], at[d]) for d in range(self.dp)]
        every = max(end for _, ends in played for end in ends)
        for p in range(self.pp):
            last = max(ends[p] for _, ends in played)
            for d, (spent, ends) in enumerate(played):
                times = spent[p] | {
                    "grads-reduce-scatter": (last - ends[p] + 0.06 * np.exp(rng.normal(0, 0.1)), 1),
                    "embedding-grads-all-reduce": (every - last + 0.01, 1),
                    "optimizer": (0.04 * np.exp(rng.normal(0, 0.05)), 1),
                    "gc": (pause[d, p] if self.pauses_named else 0.0, 1),
                }
                for name, (seconds, count) in times.items():
                    waits = any(word in name for word in ("send", "recv", "reduce"))
                    kind = "collective" if waits else "python" if name == "gc" else "gpu"
                    yield {"rank": self.rank(d, p), "step": step, "function": name, "kind": kind, "seconds": float(seconds),
                           "count": count, "role": f"stage-{p}", "waits": waits}  # fmt: skip

    def _order(self, stage: int) -> list[tuple[str, int]]:
        warm = min(self.pp - 1 - stage, self.batches)
        order = [("F", i) for i in range(warm)]
        for i in range(warm, self.batches):
            order += [("F", i), ("B", i - warm)]
        return order + [("B", i) for i in range(self.batches - warm, self.batches)]

    def _play(
        self, pipeline: int, factor: dict[str, np.ndarray], pause: np.ndarray, at: np.ndarray
    ) -> tuple[list[dict[str, tuple[float, int]]], list[float]]:
        """What each stage of one pipeline spent on what, (seconds, times), and when it was through."""
        order = [self._order(p) for p in range(self.pp)]
        link = [self.link_s if self.link == (pipeline, p) else MESSAGE_S for p in range(self.pp)]
        now, place, done = [0.0] * self.pp, [0] * self.pp, dict[tuple[str, int, int], float]()
        spent = [dict.fromkeys(("F", "B", "wait F", "wait B"), 0.0) for _ in range(self.pp)]
        while any(place[p] < len(order[p]) for p in range(self.pp)):
            for p in range(self.pp):
                while place[p] < len(order[p]):
                    way, batch = order[p][place[p]]
                    before = (p - 1 if p else None) if way == "F" else (p + 1 if p < self.pp - 1 else None)
                    if before is not None:
                        if (way, before, batch) not in done:
                            break
                        ready = max(now[p], done[way, before, batch] + link[min(p, before)])
                        spent[p][f"wait {way}"] += ready - now[p]
                        now[p] = ready
                    took = (FORWARD_S if way == "F" else BACKWARD_S) * float(factor[way][pipeline, p, batch])
                    stands = float(pause[p]) if (way, batch) == ("F", int(at[p])) else 0.0
                    spent[p][way] += took + (0.0 if self.pauses_named else stands)
                    now[p] += took + stands
                    done[way, p, batch] = now[p]
                    place[p] += 1
        rows = []
        for p in range(self.pp):
            row = {"forward-compute": (spent[p]["F"], self.batches), "backward-compute": (spent[p]["B"], self.batches)}
            if p:
                row |= {"forward-recv": (spent[p]["wait F"], self.batches), "backward-send": (0.002, self.batches)}
            if p < self.pp - 1:
                row |= {"backward-recv": (spent[p]["wait B"], self.batches), "forward-send": (0.002, self.batches)}
            rows.append(row)
        return rows, now
