"""Split off computing what the kernel did: give and take back pages, carry out system calls, interrupts.

kernel(row) = seconds of the row · share of its samples that were in the kernel; the rest of the row
              stays what it is

Outside of system calls a thread is in the kernel for a page or for an interrupt, and a sample does
not tell which. So a rank's seconds there are pages if it had enough faults for half of them, at
5 us each; else interrupts.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.budget.labels import Label
from rankscope.diagnose.infer.budget.spent import CODE, Spent
from rankscope.diagnose.infer.fleet.labels import distinct_rows
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.evidence.known_code import OF_MEMORY, PAGE_FAULT
from rankscope.diagnose.infer.verdict.budget import COMPUTING, Kind
from rankscope.probes.base.arrays import Bools, Floats, Ints

NEW_PAGES, INTERRUPTS = "new pages", "interrupts"


def with_kernel(fleet: Fleet, spent: Spent) -> Spent:
    """Split computing rows into the kernel's part (kind SYSTEM) and the rest; unchanged where that is not known."""
    table = fleet.patterns
    if table.kernel_share is None or table.kernel_for is None:
        return spent
    share = np.clip(np.nan_to_num(table.kernel_share[spent.rows]), 0.0, 1.0)
    rows = np.flatnonzero((share > 0) & np.isin(spent.kind, [CODE[each] for each in COMPUTING]))
    if not len(rows):
        return spent
    kernel_s = spent.seconds[rows] * share[rows]
    codes = table.kernel_for.codes[spent.rows[rows]]
    outside: Bools = codes == table.kernel_for.code(PAGE_FAULT)
    pages = _pages(fleet, outside, spent.rank[rows], kernel_s)
    which = distinct_rows((spent.label[rows], codes, pages.astype(np.int64)))
    labels = list(spent.labels)
    numbers = {label: number for number, label in enumerate(labels)}
    label = np.zeros(len(rows), dtype=np.int64)
    for number in np.unique(which).tolist():
        mine = which == number
        first = int(np.argmax(mine))
        call = table.kernel_for.at(int(spent.rows[rows[first]]))
        word = NEW_PAGES if pages[first] else INTERRUPTS if outside[first] else call
        made = _label(word, labels[int(spent.label[rows[first]])])
        label[mine] = numbers.setdefault(made, len(numbers))
    return spent.with_parts(rows, kernel_s, CODE[Kind.SYSTEM], label, tuple(numbers))


def _label(word: str, of_row: Label) -> Label:
    """Return the label `of_row` with `word` in front of its words."""
    return (f"{word}, {of_row[0]}" if of_row[0] else word), of_row[1]


def _pages(fleet: Fleet, outside: Bools, rank: Ints, seconds: Floats) -> Bools:
    """Mask the rows outside of system calls whose kernel time is for pages; the others of these are interrupts.

    `outside`: mask of the rows outside of system calls; `rank`, `seconds`: of each row.
    """
    by_rank = np.bincount(rank[outside], seconds[outside], len(fleet.ranks)).astype(np.float64)
    return np.asarray(outside & pages_account_for(fleet, by_rank)[rank], dtype=bool)


def pages_account_for(fleet: Fleet, seconds: Floats) -> Bools:
    """Mask the ranks whose page faults may have taken half of these seconds per step (by rank)."""
    faults = np.nan_to_num(fleet.counters.total("memory.minor_faults", np.arange(len(fleet.ranks))))
    steps = max(fleet.steps.count, 1)
    return np.asarray(faults / steps * limits.NEW_PAGE_S >= limits.HOLDS_LEAST * seconds, dtype=bool)


def of_memory(fleet: Fleet, spent: Spent) -> Bools:
    """Mask of the rows of `spent` in which the kernel gives pages to a process or takes them back."""
    table = fleet.patterns
    found: Bools = spent.kind == CODE[Kind.SYSTEM]
    if table.kernel_for is None:
        return np.zeros(len(found), dtype=bool)
    outside: Bools = found & (table.kernel_for.codes[spent.rows] == table.kernel_for.code(PAGE_FAULT))
    pages = _pages(fleet, outside, spent.rank, spent.seconds)
    calls = found & ~outside & table.kernel_for.among(spent.rows, OF_MEMORY)
    return np.asarray(pages | calls, dtype=bool)
