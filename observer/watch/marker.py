"""Choose the one function whose calls mark a job's steps from now on. Pure.

Permanent watching needs few probes: a uprobe costs the job up to 10 µs, twice per call. So all
candidates are timed once, for some steps, and one remains:

1. DDP's wait for its last bucket, else the backward pass: once per pass. The number of passes per step is the period of the gaps between
   them (accumulation; a host that runs ahead of its GPU and waits in every Nth);
2. else, of the functions that are called in every step (`repeats.find` over all of them gives the steps), the one called least often.

`per_step` calls of it are one step, from whichever of them one begins: after a call that was not
made in every step (a logged loss) the steps are counted from another position of the loop, and are
as long as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.observer.steps import repeats
from rankscope.observer.steps.markers import Markers
from rankscope.probes.base.arrays import Floats, Ints
from rankscope.probes.calls.row import BACKWARD, COLLECTIVE, ENQUEUE, WAIT, CallRow
from rankscope.probes.calls.table import CALL_TABLE, UPDATE

# Functions that may mark a step. Events and maps refer to a row by its index here.
MARKERS: tuple[CallRow, ...] = tuple(row for row in CALL_TABLE if row.role in (COLLECTIVE, WAIT, BACKWARD, ENQUEUE))
CALLS_LEAST = 12  # three of four passes each
_IN_EVERY_STEP = 0.95


@dataclass(frozen=True, slots=True)
class Calls:
    """Finished calls of one rank in order of their end, in seconds. `row`: index in `MARKERS`."""

    row: Ints
    start_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.row)

    def of(self, row: int) -> Calls:
        """Select the calls of one function."""
        mine = self.row == row
        return Calls(self.row[mine], self.start_s[mine], self.end_s[mine])


@dataclass(frozen=True, slots=True)
class StepMarker:
    """The function whose calls mark a job's steps: `per_step` calls of it make a step.

    `row`: index in `MARKERS`; `hz`: calls a second; `waits`: its time is waiting for other ranks.
    """

    row: int
    per_step: int
    hz: float
    waits: bool


def choose(calls: Calls, table: Sequence[CallRow] = MARKERS) -> StepMarker | None:
    """Choose the marker, given the calls of one rank over some time; None where nothing repeats
    often enough yet.
    """
    if len(calls) < CALLS_LEAST:
        return None
    count = np.bincount(calls.row, minlength=len(table))
    for wanted in (_of_updates(table), _of_role(table, BACKWARD)):
        rows = [row for row in wanted if count[row] >= CALLS_LEAST]
        if rows:
            row = min(rows, key=lambda one: int(count[one]))
            period = repeats.find(_markers(calls.of(row), one_symbol=True)).period
            return _marker(calls, row, max(period, 1), table)
    return _of_repeats(calls, count, table)


def _of_updates(table: Sequence[CallRow]) -> list[int]:
    """Return the rows of the table that end a gradient update."""
    return [place for place, row in enumerate(table) if row.name == UPDATE]


def _of_role(table: Sequence[CallRow], role: str) -> list[int]:
    """Return the rows of the table that have this role."""
    return [place for place, row in enumerate(table) if row.role == role]


def _of_repeats(calls: Calls, count: Ints, table: Sequence[CallRow]) -> StepMarker | None:
    """Choose, of the functions called in every step, the one called least often; None if no steps are found.

    Steps come from the repeating sequence of all calls. `count`: number of calls by row.
    """
    edge_s = repeats.find(_markers(calls, one_symbol=False)).edge_s
    if len(edge_s) < 2:
        return None
    steps = (float(calls.end_s[-1]) - float(calls.start_s[0])) / float(np.median(np.diff(edge_s)))
    per_step = count / steps
    usual = np.flatnonzero((per_step >= _IN_EVERY_STEP) & (count >= CALLS_LEAST))
    if not len(usual):
        return None
    row = int(usual[np.argmin(count[usual])])
    return _marker(calls, row, max(round(float(per_step[row])), 1), table)


def _marker(calls: Calls, row: int, per_step: int, table: Sequence[CallRow]) -> StepMarker:
    """Build the marker for this row, with the rate of its calls."""
    mine = calls.of(row)
    seconds = max(float(mine.end_s[-1] - mine.end_s[0]), 1e-9)
    return StepMarker(row, per_step, (len(mine) - 1) / seconds, table[row].role in (WAIT, COLLECTIVE))


def _markers(calls: Calls, one_symbol: bool) -> Markers:
    """Convert calls to Markers, in order of begin; `one_symbol`: as calls of a single function."""
    order = np.argsort(calls.start_s, kind="stable")
    symbol = np.zeros(len(calls), dtype=np.int64) if one_symbol else calls.row[order]
    return Markers(symbol, calls.start_s[order], calls.end_s[order])
