"""Select the largest part of a file in which the ranks are the same, for jobs restarted at another
size.

Work per rank depends on the number of ranks, so steps at another size are no baseline. Several
ranks whose steps begin later or end earlier than the file's, by a tenth of it or more, mark a
change; the part with most (rank, step) pairs is used. A single rank that comes or goes counts as
missing, not as a change."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.timings.steps_file import Timings
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.probes.base.arrays import Ints


def one_world(timings: Timings) -> Timings:
    """Timings of the part with most ranks times steps.

    All of them if the number of ranks did not change.
    """
    numbers, row = np.unique(timings.rank, return_inverse=True)
    labels, column = np.unique(timings.step, return_inverse=True)
    row, column = row.reshape(-1), column.reshape(-1).astype(np.int64)
    if len(numbers) < 2 or len(labels) < 2 * limits.STEPS_LEAST:
        return timings
    first, last = np.full(len(numbers), len(labels)), np.full(len(numbers), -1)
    np.minimum.at(first, row, column)
    np.maximum.at(last, row, column)
    edges = _edges(first, last + 1, len(labels))
    if not len(edges):
        return timings
    bounds = [0, *edges.tolist(), len(labels)]
    sizes = []
    for begin, end in pairwise(bounds):
        middle = (begin + end) // 2
        sizes.append(int(((first <= middle) & (last >= middle)).sum()))
    best = int(np.argmax([size * (end - begin) for size, (begin, end) in zip(sizes, pairwise(bounds), strict=True)]))
    begin, end = bounds[best], bounds[best + 1]
    if end - begin < limits.STEPS_LEAST:
        return timings
    there = (first <= (begin + end) // 2) & (last >= (begin + end) // 2)
    parts = zip(sizes, pairwise(bounds), strict=True)
    told = ", ".join(f"{size} in {upto - since} steps" for size, (since, upto) in parts)
    text = (
        f"the number of ranks changed in the file ({told}): the {end - begin} steps of {sizes[best]} ranks are judged"
    )
    kept = (column >= begin) & (column < end) & there[row]
    return timings.taken(kept, Note(NoteCode.WORLD_CHANGED, text))


def _edges(first: Ints, end: Ints, steps: int) -> Ints:
    """Steps (columns, rising) at which several ranks begin or end.

    `first`, `end`: column of each rank's first step, and after its last one; `steps`: number of
    columns.
    """
    margin = limits.FEW * steps
    moments = np.concatenate([first[first >= margin], end[end <= steps - margin]])
    found, count = np.unique(moments, return_counts=True)
    return np.asarray(found[count >= max(2.0, limits.FEW * len(first))], dtype=np.int64)
