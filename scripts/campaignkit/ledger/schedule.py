"""When a job of the ledger's campaign pauses, by kind. Pure.

Two hours have 24 units of five minutes. No two pauses are neighbours, so that none is told as part of another.
"""

from __future__ import annotations

from collections.abc import Mapping

UNITS = 24
_EACH = {"gc": (1.0, 1.0), "checkpoint": (0.5, 2.0), "loader": (0.8, 3.0)}  # the first, and from one to the next
_HANG, _HANG_MOST, _HANG_S = 9.05, 0.7, 100.0
_KILL = 17.3
LEAST_MINUTES = 24.0  # a hang of less than 40 s would be no hang


def pauses(began: float, minutes: float) -> dict[str, list[float]]:
    """Begin of each pause by kind, Unix seconds, of a job that begins at `began` and runs so long."""
    unit = unit_s(minutes)
    found = {
        kind: [began + at * unit for number in range(UNITS) if (at := first + number * every) <= UNITS - 0.1]
        for kind, (first, every) in _EACH.items()
    }
    return {**found, "hang": [began + _HANG * unit]}


def unit_s(minutes: float) -> float:
    """Length of a unit: from one garbage collection to the next."""
    return minutes * 60.0 / UNITS


def hang_s(minutes: float) -> float:
    """Length of the hang."""
    return min(_HANG_S, _HANG_MOST * unit_s(minutes))


def kill_at(began: float, minutes: float) -> float:
    """When a rank is killed, Unix seconds."""
    return began + _KILL * unit_s(minutes)


def counts(minutes: float) -> Mapping[str, int]:
    """How many pauses there are of each kind."""
    return {kind: len(times) for kind, times in pauses(0.0, minutes).items()}
