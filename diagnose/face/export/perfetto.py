"""Trace Event JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

Each rank is a process, its steps are slices, their parts are counters and slice arguments: a window
does not say when within a step a part occurred.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.text import clean

_PARTS = ("own_s", "wait_s", "io_s", "sched_s", "sync_s")


def perfetto(fleet: Fleet) -> bytes:
    """Export steps as JSON.

    Times are microseconds since the window began, by the first rank's host's clock.
    """
    events: list[dict[str, Any]] = []
    for row, number in enumerate(fleet.ranks.number.tolist()):
        host = clean(fleet.ranks.host[row])
        name = f"rank {number}{' on ' + host if host else ''}"
        common = {"pid": number, "tid": 1}
        events.append({"ph": "M", "name": "process_name", "args": {"name": name}, **common})
        events.append({"ph": "M", "name": "process_sort_index", "args": {"sort_index": number}, **common})
        events.append({"ph": "M", "name": "thread_name", "args": {"name": "steps"}, **common})
        events += _steps(fleet, row, common)
    # No displayTimeUnit: some trace processors apply it to all times, so that steps become a
    # thousand times longer.
    content = {"traceEvents": events, "otherData": {"job": clean(fleet.title or fleet.job)}}
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("utf-8")


def _steps(fleet: Fleet, row: int, common: dict[str, Any]) -> list[dict[str, Any]]:
    """Make the events of one rank's steps: slices and counters. `row`: its row in fleet.ranks; `common`: pid and tid."""
    steps = fleet.steps
    events: list[dict[str, Any]] = []
    known = (steps.seconds[row] > 0) & (np.abs(steps.start_s) <= budgets.DAY_S)  # a forged window may contain anything
    shown = np.flatnonzero(known & (steps.seconds[row] <= budgets.DAY_S))
    # Steps begin with the reference rank's, so one may overlap the next, which slices of a track
    # must not. Whole microseconds: readers match ends by equality, which fractions would break.
    starts = np.round(steps.start_s[shown] * 1e6).astype(np.int64).tolist()
    for column, start, following in zip(shown.tolist(), starts, [*starts, None][1:], strict=False):
        length = round(float(steps.seconds[row, column]) * 1e6)
        length = length if following is None else max(min(length, following - start), 0)
        parts = {name: float(getattr(steps, name)[row, column]) for name in _PARTS}
        told = {name: round(value, 6) for name, value in parts.items() if np.isfinite(value)}
        events.append(
            {"ph": "X", "name": f"step {column}", "cat": "step", "ts": start, "dur": length, "args": told, **common}
        )
        events += [
            {"ph": "C", "name": what, "ts": start, "args": {"seconds": told[name]}, **common}
            for name, what in (("own_s", "own time"), ("wait_s", "stay in collectives")) if name in told
        ]  # fmt: skip
    return events
