"""Measure how a function used its resource while it truly ran: trimming, then μ and σ. Pure.

A collective's stay begins with waiting for others; its utilisation, averaged over the whole stay,
would describe them more than the link. So (EROICA, arXiv 2506.08528): of one execution only the
shortest sub-interval counts that has at least `SHARE` of its utilisation with the fewest idle
samples in a row:

cut the samples wherever more than g in a row are idle; take the piece with the most utilisation;
g is the least number for which that piece has SHARE · Σ u; found by binary search over the runs that occur.

μ = Σ u_i w_i / Σ w_i        σ = √(Σ w_i (u_i − μ)² / Σ w_i)        over the samples that are left, w_i their lengths

A slow link in a ring: its own samples are low and flat (small μ, small σ); those of its peers burst
and wait (the same μ, larger σ), because they move their part of a ring step at full speed and then
wait for the slow one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rankscope.probes.base.arrays import Floats, Ints

SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Use:
    """Utilisation (0..1, or any rate) of a resource over the trimmed executions.

    `moving` = Σ u² w / Σ u w is the rate at which the mean byte moved, `seconds` the length of the
    samples that are not idle.
    """

    mu: float
    sigma: float
    moving: float
    seconds: float
    executions: int


def trim(use: Floats, idle: float = 0.0, share: float = SHARE) -> slice:
    """Return the part of one execution that has `share` of its utilisation with the fewest idle samples in a row.

    Empty where every sample is idle (`use` ≤ idle, or NaN).
    """
    busy = np.flatnonzero(use > idle)
    if not len(busy):
        return slice(0, 0)
    amount = np.concatenate(([0.0], np.cumsum(use[busy])))
    runs = np.diff(busy) - 1  # idle samples between one busy sample and the next
    lengths = np.unique(np.concatenate(([0], runs)))
    low, high = 0, len(lengths) - 1  # the longest run always suffices: nothing is cut then
    while low < high:
        middle = (low + high) // 2
        # A share that is met exactly is met, however sums are rounded.
        if _heaviest(runs, amount, int(lengths[middle]))[2] >= share * amount[-1] * (1 - 1e-9):
            high = middle
        else:
            low = middle + 1
    first, last, _ = _heaviest(runs, amount, int(lengths[low]))
    return slice(int(busy[first]), int(busy[last]) + 1)


def _heaviest(runs: Ints, amount: Floats, most_idle: int) -> tuple[int, int, float]:
    """Cut at runs of more than `most_idle` idle samples; return (first, last, utilisation) of the heaviest piece.

    First and last count busy samples only. `runs`: idle samples between one busy sample and the
    next; `amount`: cumulative sums of the busy samples' use.
    """
    cuts = np.flatnonzero(runs > most_idle)
    first = np.concatenate(([0], cuts + 1))
    last = np.concatenate((cuts, [len(runs)]))
    held = amount[last + 1] - amount[first]
    best = int(np.argmax(held))
    return int(first[best]), int(last[best]), float(held[best])


def executions(use: Floats, most_idle: int, idle: float = 0.0) -> list[slice]:
    """Split a series into executions at runs of more than `most_idle` idle samples (`use` ≤ `idle`).

    For functions whose executions are not known.
    """
    busy = np.flatnonzero(use > idle)
    if not len(busy):
        return []
    cuts = np.flatnonzero(np.diff(busy) - 1 > most_idle)
    first, last = busy[np.concatenate(([0], cuts + 1))], busy[np.concatenate((cuts, [len(busy) - 1]))]
    return [slice(int(a), int(b) + 1) for a, b in zip(first, last, strict=True)]


def measure(pieces: Iterable[tuple[Floats, Floats]], idle: float = 0.0, share: float = SHARE) -> Use | None:
    """Compute μ and σ over all executions, each trimmed; None if nothing moved.

    `pieces`: pairs (utilisation, length in seconds of each sample). Samples that are NaN or have no
    length are left out.
    """
    kept_use, kept_length, count = [], [], 0
    for use, length in pieces:
        known = np.isfinite(use) & np.isfinite(length) & (length > 0)
        part = trim(use[known], idle, share)
        if part.stop > part.start:
            kept_use.append(use[known][part])
            kept_length.append(length[known][part])
            count += 1
    if not count:
        return None
    use, weight = np.concatenate(kept_use), np.concatenate(kept_length)
    mu = float(np.average(use, weights=weight))
    moving = use > idle
    return Use(
        mu=mu,
        sigma=float(np.sqrt(np.average((use - mu) ** 2, weights=weight))),
        moving=float((use**2 * weight)[moving].sum() / (use * weight)[moving].sum()),
        seconds=float(weight[moving].sum()),
        executions=count,
    )
