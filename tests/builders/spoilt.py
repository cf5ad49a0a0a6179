"""Windows that hold arbitrary numbers."""

from __future__ import annotations

import builders
from builders import Job, build
from hypothesis import strategies as st

from rankscope.observer.window.folder import Window

NUMBER = st.floats(width=32, allow_nan=True, allow_infinity=True)


def spoilt(data: st.DataObject, job: Job) -> Window:
    """A window of the job in which arbitrary cells hold arbitrary numbers, and rows are missing or there twice."""
    window = build(job)[0]
    for table, names in (
        ("steps", ["start_s", "seconds", "own_s", "wait_s", "sched_s"]),
        ("patterns", ["per_step_s", "per_step_sd_s", "beta"]),
    ):
        rows = getattr(window, table).to_pylist()
        for _ in range(data.draw(st.integers(0, 6))):
            row = data.draw(st.integers(0, len(rows) - 1))
            rows[row][data.draw(st.sampled_from(names))] = data.draw(NUMBER)
        first, last = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))
        rows = rows[first:] + rows[:last]
        window = builders.columns(window, table, rows)
    return window
