"""Files and pipes that the training thread writes while the training waits: logs, prints, metrics.

writing(r,s) = seconds in which the training thread is blocked in a call that writes, by the
               kernel's count of file calls and waits in each step
             + running in the kernel in such calls (sampled)
             + the queue for a CPU each time that it was blocked

Evidence for: such time on all ranks in most steps. What comes in a few steps only, as a checkpoint
does, is a pause (pauses.py). One rank that writes for longer than its peers: ../rank/storage.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import SEEN
from rankscope.diagnose.infer.causes.rank.storage import is_write
from rankscope.diagnose.infer.causes.registry import asked
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.rows import Waste, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.probes.base.arrays import Bools

_ACTION = (
    "Write less often, or from another thread: keep log lines and metrics for some steps, do not flush each, and let a queue "
    "(logging.handlers.QueueHandler) or a process write them."
)


@asked
def files_written(spending: Spending) -> Iterator[Row]:
    """Propose storage/slow-write for the time that ranks are blocked in writes in most steps."""
    files, pipes = _writes(spending)
    writing = spending.seconds(files | pipes)
    if not writing.any():
        return
    columns, steps = slice(-spending.columns, None), spending.fleet.steps
    taken = spending.as_counted(spending.seconds(files), np.nan_to_num(steps.io_s[:, columns]))
    taken += spending.as_counted(spending.seconds(pipes), np.nan_to_num(steps.sync_s[:, columns]))
    taken += spending.as_counted(
        spending.seconds(spending.queue_after(files | pipes)), np.nan_to_num(steps.sched_s[:, columns])
    )
    usual = nan_median(taken, 1)
    if usual.sum() < limits.HOLDS_LEAST * taken.mean(axis=1).sum():
        return
    taken = np.fmin(taken + spending.waited(spending.seconds(_in_kernel(spending))), np.nan_to_num(spending.scene.own))
    evidence = (Evidence("files", "blocked in writing, median over ranks", median(writing), None, "s/step"),)
    waste = Waste(
        "storage",
        "slow-write",
        SEEN,
        evidence,
        _ACTION,
        spending.function_of(files | pipes),
        instance=_place(spending, files),
    )
    yield from row_of(spending, waste, taken)


def _place(spending: Spending, files: Bools) -> str:
    """Return the file system with most of the writing; '' without one, as of pipes."""
    detail, spent = spending.fleet.patterns.detail, spending.spent
    codes = detail.codes[spent.rows[files]]
    if not len(codes) or codes.min() < 0:
        return ""
    return str(detail.values[int(np.argmax(np.bincount(codes, spent.seconds[files])))])


def _in_kernel(spending: Spending) -> Bools:
    """Mask the rows of `spent` that run in the kernel in calls that write."""
    calls, rows = spending.fleet.patterns.kernel_for, spending.spent.rows
    if calls is None:
        return np.zeros(len(rows), dtype=bool)
    writes = [name for name in calls.values if is_write(name)]
    return np.asarray(spending.of_kind(Kind.SYSTEM) & calls.among(rows, writes), dtype=bool)


def _writes(spending: Spending) -> tuple[Bools, Bools]:
    """Return masks of the rows of `spent` that write: (into files, into pipes and terminals)."""
    table, rows = spending.fleet.patterns, spending.spent.rows
    writes = np.array([is_write(name) for name in table.name.values], dtype=bool)
    named = writes[table.name.codes[rows]] if len(writes) else np.zeros(len(rows), dtype=bool)
    files = (table.kind.codes[rows] == table.kind.code("io")) & named
    pipes = (table.kind.codes[rows] == table.kind.code("sync")) & (table.name.codes[rows] == table.name.code("pipe"))
    pipes &= table.detail.codes[rows] == table.detail.code("write")
    return np.asarray(files, dtype=bool), np.asarray(pipes, dtype=bool)
