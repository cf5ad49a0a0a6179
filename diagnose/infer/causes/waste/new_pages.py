"""Memory that the kernel gives and takes back in each step, because an allocator does not keep it.

pages(r) = seconds per step in which the kernel was sampled in the training thread's computing for
           page faults and for calls that map and unmap, and the queue for a CPU that goes with it

Evidence for: the rank's count of minor page faults, enough for half of it. Evidence against: none
after the start: a program that fills its memory once takes pages once. One rank that does so unlike
its peers: ../rank/memory.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose.infer.budget.kernel import of_memory, pages_account_for
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.rows import Waste, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median

_ACTION = (
    "Keep the buffers, or let the allocator keep them: MALLOC_MMAP_THRESHOLD_=33554432 and MALLOC_TRIM_THRESHOLD_=4294967296 in the "
    "environment; for single arrays above 32 MB another allocator (jemalloc, tcmalloc) by LD_PRELOAD."
)


@cause("memory", "page-faults", scope="all", witness="time in the kernel for pages, faults",
       says="they take new memory in each step[, in {function}]")  # fmt: skip
def new_pages(spending: Spending) -> Iterator[Row]:
    """Propose memory/page-faults for the time in which the kernel gives pages and takes them back."""
    rows = of_memory(spending.fleet, spending.spent)
    seconds = spending.seconds(rows)
    known = pages_account_for(spending.fleet, seconds)
    seconds = np.where(known, seconds, 0.0)
    if not seconds.any():
        return
    faults = spending.fleet.counters.total("memory.minor_faults", np.flatnonzero(seconds > 0))
    per_step = median(faults) / max(spending.fleet.steps.count, 1)
    evidence = (
        Evidence("stacks", "in the kernel for pages, median over ranks", median(seconds[seconds > 0]), None, "s/step"),
        Evidence("host", "minor page faults in each step, median over ranks", per_step, None, "events"),
    )
    waste = Waste("memory", "page-faults", CONVICTED, evidence, _ACTION, spending.function_of(rows))
    yield from row_of(spending, waste, spending.ran(seconds))
