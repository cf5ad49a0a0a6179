"""Work that only the longer steps of a rank have, such as reading a file, and that is no input.

Work of one stack takes a seconds in the light steps of a rank and b in the heavy ones, which are
the share h of its steps. Over all steps it has the mean m = (1-h) a + h b and the standard
deviation s = √(h (1-h)) (b - a), both of which windows contain, so that

  a = m - s √(h / (1-h))       b = m + s √((1-h) / h)

It is occasional where a is at most a tenth of b, and m² / (m² + s²), the share of the steps that
have it if it takes equally long in each, is at least half of h: an evaluation in every 50th step of
all ranks is rarer. Longer input lengthens work that is in every step.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.evidence.varying import work_variances
from rankscope.diagnose.stats.integers import distinct
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Bools


def occasional(fleet: Fleet, heavy: Bools, apart_s: float) -> tuple[StackFrame, float] | None:
    """Find the deepest frame whose occasional work is 70 % of what heavy steps take longer; None
    without.

    Returns the frame and its seconds in a heavy step. `heavy`: ranks x steps, mask of a rank's
    longer steps. `apart_s`: by how much they are longer, seconds.
    """
    table, share, ranks = fleet.patterns, float(heavy.mean()), len(fleet.ranks)
    rows, _, clean = work_variances(fleet)
    known = table.stack.codes[rows] >= 0
    rows, clean = rows[known], clean[known]
    stacks, stack = distinct(table.stack.codes[rows])
    if not 0 < share < 1 or not len(rows) or len(table.stack.frames) > budgets.CELLS_MOST:
        return None
    mean = np.bincount(stack, table.per_step_s[rows], len(stacks)) / ranks
    variance = np.bincount(stack, clean, len(stacks)) / ranks
    light = mean - np.sqrt(variance * share / (1 - share))
    there = mean + np.sqrt(variance * (1 - share) / share)
    often = mean**2 >= share / limits.CONCENTRATED * (mean**2 + variance)
    number = np.flatnonzero((light <= limits.FEW * there) & often)
    more, depth = np.zeros(len(table.stack.frames)), np.zeros(len(table.stack.frames))
    nodes, above = stacks[number], 0
    while len(nodes):  # all stacks at once, one frame of each, from the leaf up
        frame = table.stack.frame[nodes]
        np.add.at(more, frame, (there - light)[number])
        depth[frame] = np.maximum(depth[frame], above)
        nodes, above = table.stack.parent[nodes], above + 1
        number, nodes = number[nodes >= 0], nodes[nodes >= 0]
    found = np.flatnonzero(more >= limits.MOST * apart_s)
    if not len(found):
        return None
    deepest = int(found[np.argmin(depth[found])])
    return table.stack.frames[deepest], float(more[deepest])
