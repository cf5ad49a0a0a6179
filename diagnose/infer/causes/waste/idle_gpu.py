"""A GPU that idles because its host launches kernel by kernel, or waits for it inside the step.

launching(r)  = seconds per step in which the GPU of r idles and its training thread computes in a
                function that launches kernels or calls one that does (or waits for the thread that
                launches the backward pass), at most as long as the GPU idles
waiting(r)    = seconds per step in which that thread waits for its GPU, n(r) times a step

A host that never waits hands over too late what the GPU could run: launching(r) comes back with
fewer or larger launches. A host that waits n times begins each time with an empty queue; with one
wait it would run ahead of its GPU, and the shorter of both is hidden:

hidden(r)     = min(launching, waiting) · (n - 1) / n

The cause is the wait where it hides half of launching(r), else the launches.

Evidence for: the GPU's idle time by its counters, places of launches and waits by their call sites.
Evidence against: a GPU that is not seen; computing elsewhere, as input.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.budget.labels import placed
from rankscope.diagnose.infer.budget.spent import CODE, functions_of
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.rows import Waste, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.model.evidence.known_code import BACKWARD_PASS
from rankscope.diagnose.infer.verdict.budget import COMPUTING, Kind
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import median
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats

_OFTEN = 2.0  # waits in a step: one, at its end, is how most loops read their loss
_FEWER = (
    "Launch less: torch.compile(mode='reduce-overhead') or CUDA graphs, fused or foreach optimizers, a larger batch: the GPU is done "
    "before Python has launched the next kernel."
)
_LATER = (
    "Read results later: no .item(), .cpu(), print or `if` on values of the GPU inside the step; keep them there, and read them every N "
    "steps."
)


@cause("gpu", "launch-bound", scope="all", witness="GPU idle, host launching", rests_on=[Source.GPU],
       says="their GPUs idle while {function|the host} launches kernels one by one")  # fmt: skip
@cause("gpu", "launch-bound", scope="rank", witness="GPU idle, host launching", rests_on=[Source.GPU],
       says="its GPU idles while {function|the host} launches kernels one by one")  # fmt: skip
@cause("gpu", "synchronised", scope="all", witness="waits in the step, GPU idle after", rests_on=[Source.GPU],
       says="they wait for their GPUs inside the step, in {function|several places}, and the GPUs idle after that")  # fmt: skip
@cause("gpu", "synchronised", scope="rank", witness="waits in the step, GPU idle after", rests_on=[Source.GPU],
       says="it waits for its GPU inside the step, in {function|several places}, and the GPU idles after that")  # fmt: skip
def idle_gpu(spending: Spending) -> Iterator[Row]:
    """Propose gpu/launch-bound or gpu/synchronised for the time that GPUs idle while their hosts launch."""
    fleet, ranks = spending.fleet, np.arange(len(spending.fleet.ranks))
    steps = max(fleet.steps.count, 1)
    idle_s = np.nan_to_num(fleet.counters.total("gpu.idle_s", ranks)) / steps
    rows = _launching(spending)
    launching = np.minimum(spending.seconds(rows), idle_s)
    if not launching.any():
        return
    busy = launching > 0
    count, waiting, place = _waits(spending)
    hidden = np.minimum(launching, waiting) * np.maximum(1 - 1 / np.maximum(count, 1.0), 0.0)
    launches = np.nan_to_num(fleet.counters.total("gpu.launches", ranks)) / steps
    evidence = [
        Evidence("nvml", "the GPU idles, median over ranks", median(idle_s[busy]), None, "s/step"),
        Evidence("stacks", "meanwhile the host computes where it launches kernels", median(launching[busy]), None, "s/step"),
        Evidence("calls", "kernels launched in each step, at least", median(launches[busy]), None, "events"),
    ]  # fmt: skip
    if median(count[busy]) >= _OFTEN and median(hidden[busy]) >= limits.HOLDS_LEAST * median(launching[busy]):
        evidence.append(Evidence("calls", "waits for the GPU in each step", median(count[busy]), None, "events"))
        waste = Waste("gpu", "synchronised", CONVICTED, tuple(evidence), _LATER, place)
        yield from row_of(spending, waste, spending.ran(hidden))
        return
    waste = Waste("gpu", "launch-bound", CONVICTED, tuple(evidence), _FEWER, spending.function_of(rows))
    yield from row_of(spending, waste, spending.ran(launching))


def _launching(spending: Spending) -> Bools:
    """Mask the rows of `spent` in which a training thread computes where it launches kernels."""
    spent, table = spending.spent, spending.fleet.patterns
    _, first = functions_of(table, np.flatnonzero(table.on_gpu("gpu")).astype(np.int64))
    frames = {frame for row in first for frame in table.stack.of(int(table.stack.codes[row]))}
    places = {placed(table, int(row), spent.frames)[1] for row in first} - {None}
    places |= {Function("python", frame.name, frame.file, frame.line) for frame in frames}
    of_thread = any(not table.file.at(int(row)) and table.caller.at(int(row)) for row in first)
    labels = np.array([label[1] in places for label in spent.labels], dtype=bool)
    computing = np.isin(spent.kind, [CODE[each] for each in COMPUTING]) & labels[spent.label]
    backward = (spent.kind == CODE[Kind.LOCKS]) & table.caller.among(spent.rows, BACKWARD_PASS)
    return np.asarray(computing | backward if of_thread else computing, dtype=bool)


def _waits(spending: Spending) -> tuple[Floats, Floats, Function | None]:
    """Return (waits for the GPU per step, seconds per step of them), by rank, and the function with most waits."""
    fleet, table = spending.fleet, spending.fleet.patterns
    rows = np.flatnonzero(table.on_gpu("sync")).astype(np.int64)
    ranks, steps = len(fleet.ranks), max(fleet.steps.count, 1)
    counts = np.asarray(table.count[rows], dtype=np.float64) if len(rows) else np.zeros(0)
    count, seconds = (
        np.bincount(table.rank[rows], values, ranks).astype(np.float64)
        for values in (counts / steps, np.nan_to_num(table.per_step_s[rows]))
    )
    if not len(rows):
        return count, seconds, None
    alike, first = functions_of(table, rows)
    most = int(first[int(np.argmax(np.bincount(alike, counts)))])
    return count, seconds, placed(table, most, spending.spent.frames)[1]
