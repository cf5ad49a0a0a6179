"""Renumber ranks that count from 0 on each host (LOCAL_RANK): several hosts have the same numbers
and steps.

Otherwise they would count as repeated reports of one rank, of which only the first is used, and
most of the job would be lost. A single rank reported by two hosts is not renumbered."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.probes.base.arrays import Ints


def global_numbers(rank: Ints, step: Ints, host: Labels, usable: Ints, notes: list[Note]) -> Ints:
    """Rank of every row, made unique across hosts if most numbers occur on several; adds a note.

    `usable`: indices of rows that may be right.
    """
    named = [code for code in sorted(range(len(host.values)), key=host.values.__getitem__) if host.values[code]]
    place = np.full(len(host.values), -1, dtype=np.int64)
    place[named] = np.arange(len(named))
    where = place[host.codes]
    if (
        len(named) < 2
        or (where[usable] < 0).any()
        or not _on_several(rank[usable], step[usable], where[usable], len(named))
    ):
        return rank
    most = int(rank[usable].max()) + 1
    text = (
        f"{len(named)} hosts have the same ranks in the same steps: these were numbered on each host anew; here a host's follow those of "
        f"the host before by name, {most} on each"
    )
    notes.append(Note(NoteCode.LOCAL_NUMBERS, text))
    return np.asarray(np.minimum(rank, most - 1) + np.maximum(where, 0) * most, dtype=np.int64)


def _on_several(rank: Ints, step: Ints, host: Ints, hosts: int) -> bool:
    """Whether most ranks occur on several hosts in most of their steps."""
    numbers, row = np.unique(rank, return_inverse=True)
    steps, column = np.unique(step, return_inverse=True)
    cell = row.reshape(-1).astype(np.int64) * len(steps) + column.reshape(-1)
    cells, holders = np.unique(np.unique(cell * hosts + host) // hosts, return_counts=True)
    owner = cells // len(steps)
    several = np.bincount(owner, weights=holders > 1, minlength=len(numbers))
    often = several > limits.HOLDS_LEAST * np.bincount(owner, minlength=len(numbers))
    return bool(often.mean() > limits.HOLDS_LEAST)
