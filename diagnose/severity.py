"""How bad a thing is: the words that sweeps and the table of Xids share, and their exit codes."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.probes.base.errors import EXIT_CRITICAL, EXIT_DEGRADED, EXIT_HEALTHY, EXIT_UNKNOWN

OK, WARNING, CRITICAL, UNKNOWN = "ok", "warning", "critical", "unknown"


STATES = (OK, WARNING, CRITICAL, UNKNOWN)


_RANK = {OK: 0, UNKNOWN: 1, WARNING: 2, CRITICAL: 3}


_EXITS = {OK: EXIT_HEALTHY, UNKNOWN: EXIT_UNKNOWN, WARNING: EXIT_DEGRADED, CRITICAL: EXIT_CRITICAL}


def weight(state: str) -> int:
    """How much a state counts, more for what is worse: ok, unknown, warning, critical."""
    return _RANK[state]


def worst(states: Iterable[str]) -> str:
    """The state that counts most: critical, warning, unknown, ok."""
    return max(states, key=_RANK.__getitem__, default=OK)


def exit_code(states: Iterable[str], fail_on: str = UNKNOWN) -> int:
    """0 ok, 1 warning, 2 critical, 3 unknown; what weighs less than `fail_on` (unknown < warning < critical) is 0."""
    state = worst(states)
    return _EXITS[state] if _RANK[state] >= _RANK[fail_on] else EXIT_HEALTHY
