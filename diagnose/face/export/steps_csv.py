"""CSV of step parts by rank, for tables and notebooks, in the columns that `diagnose --steps FILE` reads."""

from __future__ import annotations

import csv
import io

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.text import clean

COLUMNS = ("rank", "step", "function", "kind", "seconds", "role", "host", "waits")


def steps_csv(fleet: Fleet) -> bytes:
    """Export one row per rank, step and part of the step."""
    steps, text = fleet.steps, io.StringIO()
    work = steps.own_s - steps.io_s - steps.sched_s - steps.sync_s
    parts = (
        ("own work", "python", work), ("files", "io", steps.io_s), ("run queue", "sched", steps.sched_s),
        ("locks and other threads", "sync", steps.sync_s), ("collectives", "collective", steps.wait_s),
    )  # fmt: skip
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for row, number in enumerate(fleet.ranks.number.tolist()):
        role, host = (_plain(value) for value in (fleet.ranks.role[row], fleet.ranks.host[row]))
        for column in np.flatnonzero(np.isfinite(steps.seconds[row])).tolist():
            for function, kind, seconds in parts:
                value = float(seconds[row, column])
                if np.isfinite(value):
                    waits = "true" if kind == "collective" else "false"
                    out.writerow((number, column, function, kind, f"{max(value, 0.0):.6f}", role, host, waits))
    return text.getvalue().encode("utf-8")


def _plain(text: str) -> str:
    """Clean a text, and escape it if a spreadsheet would take it for a formula."""
    said = clean(text)
    return f"'{said}" if said[:1] in "=+-@" and said else said
