"""The table of all registered causes, printed by `rankscope causes`.

The modules of this package register their causes (registry.py). A cause found on several hosts that
share a rack, switch or the like becomes scope "group" (group/). `counted.json` holds how often each
cause was right in the corpus; `scripts/corpus judge --hold` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankscope.diagnose.infer.causes.registry import Cause, load
from rankscope.diagnose.infer.verdict.contract import COMPONENTS
from rankscope.observer.sources import Source

COUNTED = Path(__file__).with_name("counted.json")
SCHEMA = "rankscope.causes/1"

TABLE = load()
KNOWN = frozenset(row.key for row in TABLE)
CAUSES: Mapping[str, tuple[str, ...]] = {
    component: tuple(dict.fromkeys(row.cause for row in TABLE if row.component == component))
    for component in COMPONENTS
}


@dataclass(frozen=True, slots=True)
class Counted:
    """How often a cause was the first suspect in the corpus: `right` and `wrong` counts."""

    right: int = 0
    wrong: int = 0


def rests_on(component: str, cause: str, scope: str) -> frozenset[Source]:
    """Return the sources of evidence without one of which this cause is not reported.

    Where no row has this scope (as for "group"), return what all rows of the cause have in common.
    """
    return frozenset.intersection(*(row.rests_on for row in _rows_of(component, cause, scope)))


def _rows_of(component: str, cause: str, scope: str) -> list[Cause]:
    """Return the row of a cause with this scope, or all its rows if no row has this scope."""
    mine = [row for row in TABLE if (row.component, row.cause) == (component, cause)]
    return [row for row in mine if row.scope == scope] or mine


def unseen_without(sources: frozenset[Source]) -> tuple[Cause, ...]:
    """Return the causes that need at least one of these sources, so cannot be reported without it."""
    return tuple(row for row in TABLE if row.rests_on & sources)


def counted() -> tuple[dict[tuple[str, str, str], Counted], int]:
    """Read `counted.json`; return (Counted by (component, cause, scope), number of windows counted)."""
    content = json.loads(COUNTED.read_text())
    found = {
        (item["component"], item["cause"], item["scope"]): Counted(item["right"], item["wrong"])
        for item in content["causes"]
    }
    return found, int(content["cases"])
