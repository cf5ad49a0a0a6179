"""Ranks that wait for their input: for loader workers, and for these to be started anew.

waiting(r,s) = seconds in which the training thread waits in a data loader's code, by the kernel's
               count of its waits in each step; and all that the loader takes in steps in which it
               pauses the rank, the start of workers among it
taken(r,s)   = waiting(r,s) (1 + behind(r,s) / step(r,s)); behind: queued for a CPU behind loader workers
               of the job (cpu_pools.py). The share of the step that is waited for is the part of the
               workers' work that is too much; without it ranks queue that much less behind them

What the training thread loads itself, while no worker could, is work and no wait. The reason is
told by what shows it:

- in a few steps only: workers are started anew in each epoch, and prepare themselves each time
- the workers queue for a CPU for as long as they work: there are too few CPUs for them
- they mostly read or write files, or send what they made: that
- else the function in which they compute most
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.budget.pauses import places, through
from rankscope.diagnose.infer.budget.workers import meanwhile
from rankscope.diagnose.infer.causes.hypothesis import SEEN
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.cpu_pools import behind_workers_s
from rankscope.diagnose.infer.causes.waste.rows import Waste, often, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.verdict.budget import Item, Kind
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Bools, Floats, Ints

_SENDS = ("send", "feed", "dumps", "put", "reduce", "share")  # parts of names of functions that hand over a batch
_QUEUE = "queue for a CPU"


@dataclass(frozen=True, slots=True)
class _Why:
    """The reason of a wait for input: evidence, what to do, and the function in which it is."""

    evidence: tuple[Evidence, ...]
    action: str
    function: Function | None = None


@cause("python", "dataloader", scope="all", witness="all wait for the next batch",
       says="their data comes late[: {function}]")  # fmt: skip
def waited_for(spending: Spending) -> Iterator[Row]:
    """Propose python/dataloader for the time that ranks wait for their loader workers."""
    fleet, spent = spending.fleet, spending.spent
    loads, sync = spending.of_kind(Kind.INPUT), fleet.patterns.kind.code("sync")
    waits = loads & (fleet.patterns.kind.codes[spent.rows] == sync)
    entries, in_pauses = _paused(spending, loads)
    waiting = spending.seconds(waits | in_pauses)
    if not waiting.any():
        return
    taken = spending.waited(waiting, entries) if entries else _counted(spending, spending.seconds(waits))
    columns = np.unique([column for entry in entries for column in spending.in_columns(entry).tolist()]).astype(
        np.int64
    )
    rare_s = spending.seconds(in_pauses)
    rare = len(columns) > 0 and rare_s.sum() >= limits.HOLDS_LEAST * waiting.sum()
    why = _of_starts(spending, columns, loads) if rare else _of_workers(spending)
    told = Evidence("scheduler", "waiting for the next batch, median over ranks", median(waiting), None, "s/step")
    waste = Waste("python", "dataloader", SEEN, (told, *why.evidence), why.action, why.function)
    step = fleet.steps.seconds[:, -spending.columns :]
    late = np.divide(taken, step, out=np.zeros_like(taken), where=step > 0)
    taken = np.fmin(taken + late * behind_workers_s(spending), np.nan_to_num(spending.scene.own))
    yield from row_of(spending, waste, taken)


def _paused(spending: Spending, loads: Bools) -> tuple[list[int], Bools]:
    """Return (rows of the table of pauses in which a loader pauses a rank, mask of these pauses' rows of `spent`)."""
    fleet, spent = spending.fleet, spending.spent
    found, mask = list[int](), np.zeros(len(spent.rows), dtype=bool)
    for place, entries in places(fleet):
        inside = through(fleet.patterns, spent, place) & np.isin(spent.rank, fleet.pauses.rank[entries])
        if spent.seconds[inside & loads].sum() > limits.HOLDS_LEAST * spent.seconds[inside].sum():
            found += entries.tolist()
            mask |= inside & loads
    return found, mask


def _counted(spending: Spending, waiting: Floats) -> Floats:
    """Spread each rank's waiting (seconds per step) as the kernel counts its waits in each judged step."""
    return spending.as_counted(waiting, np.nan_to_num(spending.fleet.steps.sync_s[:, -spending.columns :]))


def _of_starts(spending: Spending, columns: Ints, loads: Bools) -> _Why:
    """Return the reason where few steps (`columns`) have the waits: workers are started anew.

    `loads`: mask of the loader's rows of `spent`.
    """
    worst = _busiest(spending)
    evidence = [Evidence("stacks", "the loader pauses ranks", often(spending, columns), None, "")]
    if worst is not None:
        evidence.append(_told(worst))
    made = (
        ""
        if worst is None or worst.function is None
        else f", and spare what {worst.function.words} prepares in each of them"
    )
    action = f"The loader starts its workers anew in each epoch: keep them (persistent_workers=True){made}."
    return _Why(tuple(evidence), action, spending.function_of(loads))


def _of_workers(spending: Spending) -> _Why:
    """Return the reason where most steps have the waits: what the workers do meanwhile."""
    worst = _busiest(spending)
    if worst is None:
        return _Why(
            (),
            "The next batch comes late: add loader workers (num_workers), and let them read ahead (prefetch_factor).",
        )
    if worst.what == _QUEUE:
        text = "The loader workers queue for a CPU: give them CPUs of their own, or start fewer of them."
        return _Why((_told(worst),), text)
    name = worst.function.words if worst.function is not None else worst.what
    if worst.function is not None and any(part in worst.function.name.lower() for part in _SENDS):
        text = f"The loader workers mostly send what they made ({name}): send less, or as tensors, which are shared and not copied."
    elif any(part in worst.what for part in ("read", "write", "open")):
        text = f"The loader workers mostly wait for files ({worst.what}): read larger pieces, from a nearer place, or add workers."
    else:
        text = f"The loader workers cannot keep up, mostly in {name}: make it cheaper, or add workers (num_workers)."
    return _Why((_told(worst),), text, worst.function)


def _busiest(spending: Spending) -> Item | None:
    """Return what the loader workers spend most time on; None where none was seen."""
    found = meanwhile(spending.fleet, spending.spent)
    return found[0] if found else None


def _told(worst: Item) -> Evidence:
    """Return the evidence of what a rank's loader workers spend most time on."""
    name = worst.function.place if worst.function is not None else worst.what
    return Evidence("stacks", f"loader workers of a rank in {name}", worst.seconds, None, "s/step")
