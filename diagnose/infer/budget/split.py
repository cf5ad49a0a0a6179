"""Time in collectives, split by the peers into waiting for other ranks and exchange of data.

What no rank can avoid is the exchange, the rest is waiting (model/slots.py, model/waiting.py):

exchange(r) = collectives(r) · Σ_s min(least(s), wait(r,s)) / Σ_s wait(r,s), least: the least stay

With a single rank of several observed nothing tells them apart: then they stay `collectives`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankscope.diagnose.infer.budget.spent import CODE, Spent
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.slots import least_stay
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.probes.base.arrays import Floats


def with_split(fleet: Fleet, spent: Spent) -> Spent:
    """Split each row of time in collectives into exchange and waiting; unchanged where these are not known apart."""
    share = _exchange_share(fleet, spent)
    rows = np.flatnonzero(spent.kind == CODE[Kind.COLLECTIVES])
    if share is None or not len(rows):
        return spent
    exchange_s = spent.seconds[rows] * share[spent.rank[rows]]
    kind = spent.kind.copy()
    kind[rows] = CODE[Kind.WAITING]
    return replace(spent, kind=kind).with_parts(rows, exchange_s, CODE[Kind.EXCHANGE])


def _exchange_share(fleet: Fleet, spent: Spent) -> Floats | None:
    """Return the share (0..1) of each rank's time in collectives that is exchange; None where it cannot be known."""
    asked_s = fleet.steps.asked_s
    wait = fleet.steps.wait_s if asked_s is None else np.maximum(fleet.steps.wait_s - asked_s, 0.0)
    ranks = len(fleet.ranks)
    if ranks == 1 and int(fleet.ranks.world_size.max()) == 1:
        return np.ones(1)
    if len(spent.counted) < 2 or spent.of_window:
        return None
    least = least_stay(wait, fleet.pipelines, fleet.slots)
    known = np.isfinite(wait) & np.isfinite(least) & (wait > 0)
    total = np.where(known, wait, 0.0).sum(axis=1)
    exchange = np.where(known, np.fmin(np.maximum(least, 0.0), wait), 0.0).sum(axis=1)
    share = np.divide(exchange, total, out=np.ones(ranks), where=total > 0)
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)
