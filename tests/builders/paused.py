"""Windows in which a function pauses ranks in some of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builders import TRAIN, columns

from rankscope.observer.window.folder import Window


def paused(
    window: Window, place: tuple[str, int, str], more_s: float, steps: Sequence[int], workers: Sequence[int] = range(4),
    waiters: Sequence[int] = (), file: str = TRAIN, more: bool = False,
) -> Window:  # fmt: skip
    """The same window with a pause of so many seconds in these steps: workers are busy in it, waiters wait in the same function, and all
    others in their next collective."""
    rows: list[dict[str, Any]] = window.steps.to_pylist()
    for row in rows:
        if row["step"] in steps:
            row["seconds"] += more_s
            row["own_s" if row["rank"] in workers else "wait_s"] += more_s
        row["start_s"] += more_s * sum(step < row["step"] for step in steps)
    name, line, inside = place
    window = columns(window, "steps", rows)
    listed: list[dict[str, Any]] = window.pauses.to_pylist()
    for rank in (*workers, *waiters):
        listed.append({"rank": rank, "name": name, "file": file, "line": line, "inside": inside, "more": more, "count": len(steps),
                       "total_s": more_s * len(steps), "p50_s": more_s, "max_s": more_s,
                       "wait_s": more_s * len(steps) * (rank in waiters), "steps": list(steps)})  # fmt: skip
    return columns(window, "pauses", listed)
