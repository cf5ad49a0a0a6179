"""Seconds per step of every row of a training thread, with kind and label, fitted to its steps.

length(r)  = mean of the steps of rank r; without steps of any rank the window
spent(row) = seconds per step of the row; without steps its share of the window
fitted     running time is estimated by samples: it is scaled down where it exceeds what the other
           rows, which are measured, leave of the length; then all rows, where they still exceed it
           (forged windows, steps that were corrected)
not timed  = length - Σ spent
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose.infer.budget.frames import Frames
from rankscope.diagnose.infer.budget.kinds import kind_of
from rankscope.diagnose.infer.budget.labels import Label, label_of
from rankscope.diagnose.infer.fleet.labels import distinct_rows
from rankscope.diagnose.infer.fleet.model import Fleet, Patterns
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.stats.robust import mean_of_known
from rankscope.probes.base.arrays import Floats, Ints

KINDS = tuple(Kind)
CODE = {kind: code for code, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class Spent:
    """Time of training threads by row.

    `rows`: rows of the pattern table; `rank`: their rows in Ranks; `seconds`: per step; `alike`: number
    of each one's function, whose first row is in `first`; `kind`: index into KINDS; `label`: index into
    `labels`. `length_s`: by rank, 0 for a rank that does not count; `of_window`: there are no steps, so
    lengths and seconds are of the window; `frames`: facts on the stacks, looked at once.
    """

    rows: Ints
    rank: Ints
    seconds: Floats
    alike: Ints
    first: Ints
    kind: Ints
    label: Ints
    labels: tuple[Label, ...]
    length_s: Floats
    of_window: bool
    frames: Frames

    @property
    def counted(self) -> Ints:
        """Rows in Ranks of the ranks that count."""
        return np.flatnonzero(self.length_s > 0).astype(np.int64)

    def with_parts(
        self, rows: Ints, seconds: Floats, kind: int, label: Ints | None = None, labels: tuple[Label, ...] | None = None
    ) -> Spent:
        """Move these seconds of some rows to new rows of this kind, appended at the end.

        `rows`: indices of the columns, not of the pattern table; `label`: None: that of each row;
        `labels`: None: as they are.
        """
        left = self.seconds.copy()
        np.subtract.at(left, rows, seconds)
        return replace(
            self,
            rows=np.concatenate((self.rows, self.rows[rows])),
            rank=np.concatenate((self.rank, self.rank[rows])),
            seconds=np.concatenate((left, seconds)),
            alike=np.concatenate((self.alike, self.alike[rows])),
            kind=np.concatenate((self.kind, np.full(len(rows), kind))),
            label=np.concatenate((self.label, self.label[rows] if label is None else label)),
            labels=self.labels if labels is None else labels,
        )

    def by_rank(self) -> Floats:
        """Return seconds per step (ranks x KINDS), with what is left of a rank's length as UNKNOWN (`not timed`)."""
        cells = np.bincount(self.rank * len(KINDS) + self.kind, self.seconds, len(self.length_s) * len(KINDS))
        found = cells.reshape(-1, len(KINDS)).astype(np.float64)
        rest = np.maximum(self.length_s - found.sum(axis=1), 0.0)
        found[:, CODE[Kind.UNKNOWN]] += rest
        return found


def spent_in(fleet: Fleet) -> Spent | None:
    """Classify training threads' rows and fit them to the steps; None if neither a step nor a pattern was seen."""
    table, frames = fleet.patterns, Frames(fleet.patterns)
    length_s, of_window = _lengths(fleet)
    per_step = table.share * fleet.seconds if of_window else table.per_step_s
    chosen = (table.thread.codes == table.thread.code("training")) & np.isfinite(per_step) & (per_step > 0)
    rows = np.flatnonzero(chosen & (length_s[table.rank] > 0)).astype(np.int64)
    if of_window:  # without a pattern nothing is known
        length_s = np.where(np.bincount(table.rank[rows], minlength=len(length_s)) > 0, length_s, 0.0)
    if not (length_s > 0).any():
        return None
    alike, first = functions_of(table, rows)
    kinds = [kind_of(table, int(row), frames) for row in first]
    numbers: dict[Label, int] = {}
    label = [
        numbers.setdefault(label_of(table, int(row), kind, frames), len(numbers))
        for row, kind in zip(first, kinds, strict=True)
    ]
    seconds = _fitted(table, rows, per_step[rows], length_s)
    kind = np.array([CODE[each] for each in kinds], dtype=np.int64)[alike]
    return Spent(
        rows, table.rank[rows], seconds, alike, first, kind, np.array(label, dtype=np.int64)[alike],
        tuple(numbers), length_s, of_window, frames,
    )  # fmt: skip


def functions_of(table: Patterns, rows: Ints) -> tuple[Ints, Ints]:
    """Number rows alike in kind, name, place and stack; return (number of each row, first row of each number)."""
    columns = [table.kind, table.name, table.detail, table.file, table.caller]
    if table.native is not None:
        columns.append(table.native)
    codes = (*(column.codes[rows] for column in columns), table.line[rows], table.stack.codes[rows])
    alike = distinct_rows(codes)
    first = np.empty(int(alike.max(initial=-1)) + 1, dtype=np.int64)
    first[alike[::-1]] = rows[::-1]
    return alike, first


def _lengths(fleet: Fleet) -> tuple[Floats, bool]:
    """Return (seconds by rank that its budget adds up to, whether these are the window, not the mean step)."""
    ranks = len(fleet.ranks)
    if fleet.steps.count and np.isfinite(fleet.steps.seconds).any():
        mean = np.nan_to_num(mean_of_known(fleet.steps.seconds))
        return np.where(mean > 0, mean, 0.0), False
    window_s = fleet.seconds if np.isfinite(fleet.seconds) and fleet.seconds > 0 else 0.0
    return np.full(ranks, window_s), True


def _fitted(table: Patterns, rows: Ints, seconds: Floats, length_s: Floats) -> Floats:
    """Scale down the seconds of each rank that exceed its length: running time first, then all rows."""
    rank, ranks = table.rank[rows], len(length_s)
    runs = (table.kind.codes[rows] == table.kind.code("python")) & (table.detail.codes[rows] == table.detail.code(""))
    for scaled in (runs, np.ones(len(rows), dtype=bool)):
        total = np.bincount(rank, seconds, ranks)
        part = np.bincount(rank[scaled], seconds[scaled], ranks)
        room = np.maximum(length_s - (total - part), 0.0)
        factor = np.minimum(np.divide(room, part, out=np.ones(ranks), where=part > 0), 1.0)
        seconds = np.where(scaled, seconds * factor[rank], seconds)
    return seconds
