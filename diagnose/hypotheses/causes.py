"""The table of all causes, from what the modules of this room register (registry.py). `rankscope causes` prints it.

What several hosts have that share something becomes scope group (group/). How often each cause was right in the corpus: counted.json,
which `scripts/corpus judge --hold` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankscope.diagnose.hypotheses.registry import Cause, load
from rankscope.diagnose.verdict.contract import COMPONENTS
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
    """How often it was named first in the corpus, and was right or wrong."""

    right: int = 0
    wrong: int = 0


def rests_on(component: str, cause: str, scope: str) -> frozenset[Source]:
    """The sources that a cause rests on. What hosts of a group share (scope group) rests on what it does elsewhere."""
    return frozenset.intersection(*(row.rests_on for row in _rows_of(component, cause, scope)))


def sentence(component: str, cause: str, scope: str) -> str:
    """Return what is said of a cause in this scope, else of the narrowest scope that has a sentence. Raises KeyError for none."""
    rows = (*_rows_of(component, cause, scope), *_rows_of(component, cause, ""))
    found = next((row.says for row in rows if row.says), None)
    if found is None:
        raise KeyError(f"{component}/{cause}: no sentence is registered")
    return found


def _rows_of(component: str, cause: str, scope: str) -> list[Cause]:
    """The row of this scope; all rows of the cause where there is none, as of what hosts of a group share."""
    mine = [row for row in TABLE if (row.component, row.cause) == (component, cause)]
    return [row for row in mine if row.scope == scope] or mine


def unseen_without(sources: frozenset[Source]) -> tuple[Cause, ...]:
    """The causes that are not named where these sources are missing."""
    return tuple(row for row in TABLE if row.rests_on & sources)


def counted() -> tuple[dict[tuple[str, str, str], Counted], int]:
    """Row → how often it was right, and of how many recorded windows."""
    content = json.loads(COUNTED.read_text())
    found = {
        (item["component"], item["cause"], item["scope"]): Counted(item["right"], item["wrong"])
        for item in content["causes"]
    }
    return found, int(content["cases"])
