"""Pauses that a window saw, for the ledger: which function, on which rank, when.

From the window's table of pauses. It has none where steps are so long that there are fewer than ten
in a window: then from the patterns, the function of whose activities one lasted several times as
long as the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rankscope.diagnose import limits
from rankscope.diagnose.service.ledger.naming import SeenPause

if TYPE_CHECKING:  # the service itself needs no Arrow
    from rankscope.observer.window.folder import Window

MOST = 32
_TIMES_MOST = 16
_OUTSTANDS = 3.0  # times the median activity of a function
_LEAST_S = 0.05


def seen_in(window: Window) -> tuple[SeenPause, ...]:
    """Return the pauses in a window, the longest first, at most `MOST`."""
    found = list(_of_table(window)) or list(_of_patterns(window))
    found.sort(key=lambda one: -one.seconds)
    return tuple(found[:MOST])


def _of_table(window: Window) -> Iterator[SeenPause]:
    """Yield the pauses of the window's table of pauses, with the times of the steps in which they were."""
    begins = {
        (row["rank"], row["step"]): window.manifest.start + row["start_s"]
        for row in window.steps.select(["rank", "step", "start_s"]).to_pylist()
    }
    for row in window.pauses.to_pylist():
        at = [begins[row["rank"], step] for step in row["steps"][:_TIMES_MOST] if (row["rank"], step) in begins]
        waits = row["wait_s"] >= limits.NEARLY_ALL * row["total_s"]
        yield SeenPause(
            row["rank"], row["name"], row["file"], row["line"], row["inside"], tuple(at), row["p50_s"], waits
        )


def _of_patterns(window: Window) -> Iterator[SeenPause]:
    """Yield functions with one activity that stands out; its time is unknown and set to the window's middle."""
    middle = window.manifest.start + window.manifest.seconds / 2
    columns = ["rank", "thread", "kind", "name", "file", "line", "detail", "max_s", "p50_s", "count"]
    for row in window.patterns.select(columns).to_pylist():
        if row["thread"] != "training" or row["kind"] in ("collective", "sched") or row["max_s"] < _LEAST_S:
            continue
        if row["detail"] == "gc":
            yield SeenPause(row["rank"], "gc", "", 0, "", (middle,), row["max_s"])
        elif row["file"] and (row["count"] == 1 or row["max_s"] >= _OUTSTANDS * row["p50_s"]):
            yield SeenPause(row["rank"], row["name"], row["file"], row["line"], "", (middle,), row["max_s"])


def as_json(pauses: tuple[SeenPause, ...]) -> list[list[Any]]:
    """Convert to JSON values, for the pipe between a look and the service."""
    return [
        [one.rank, one.name, one.file, one.line, one.inside, list(one.at), one.seconds, one.waits] for one in pauses
    ]


def from_json(content: Any) -> tuple[SeenPause, ...]:
    """Read what `as_json` made. Raises ValueError, TypeError."""
    return tuple(
        SeenPause(
            int(rank), str(name), str(file), int(line), str(inside), tuple(map(float, at)), float(seconds), bool(waits)
        )
        for rank, name, file, line, inside, at, seconds, waits in content[:MOST]
    )
