"""Split the time on the GPU by the kernels that were launched, and from where.

part(kernel) = seconds of the row `kernels` · seconds of the GPU function / Σ seconds of the rank's
               GPU functions

The seconds of GPU functions are by their numbers of launches (observer/gpu/launched.py).
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.infer.budget.labels import Label, placed
from rankscope.diagnose.infer.budget.spent import CODE, Spent, functions_of
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.observer.window.schema import KERNELS


def with_launched(fleet: Fleet, spent: Spent) -> Spent:
    """Split each rank's time in GPU kernels into rows by GPU function; unchanged where none was seen."""
    table, ranks = fleet.patterns, len(fleet.ranks)
    per_step = table.share if spent.of_window else table.per_step_s
    launched = np.flatnonzero(table.on_gpu("gpu") & np.isfinite(per_step) & (per_step > 0)).astype(np.int64)
    whole = np.flatnonzero((table.name.codes[spent.rows] == table.name.code(KERNELS)) & (spent.kind == CODE[Kind.GPU]))
    if not len(launched) or not len(whole):
        return spent
    row_of = np.full(ranks, -1)
    by_length = whole[np.argsort(spent.seconds[whole], kind="stable")]
    row_of[spent.rank[by_length]] = by_length  # the longest, where a rank has several
    launched = launched[row_of[table.rank[launched]] >= 0]
    rank = table.rank[launched]
    total = np.bincount(rank, per_step[launched], ranks)
    rows = row_of[rank]
    seconds = spent.seconds[rows] * per_step[launched] / total[rank]
    alike, first = functions_of(table, launched)
    labels: dict[Label, int] = {label: number for number, label in enumerate(spent.labels)}
    made = [labels.setdefault(placed(table, int(row), spent.frames), len(labels)) for row in first]
    return spent.with_parts(rows, seconds, CODE[Kind.GPU], np.array(made, dtype=np.int64)[alike], tuple(labels))
