"""The JSON that `rankscope causes --json` prints: the table of causes with how often each was right."""

from __future__ import annotations

from typing import Any

from rankscope.diagnose.infer.causes.causes import SCHEMA, TABLE, Counted, counted


def as_object() -> dict[str, Any]:
    """Return the table of causes as JSON, with how often each was right and wrong."""
    found, cases = counted()
    rows = [
        {"component": row.component, "cause": row.cause, "scope": row.scope, "witness": row.witness, "told_by": row.told_by,
         "says": row.says, "action": row.action, "rests_on": sorted(source.value for source in row.rests_on),
         "right": found.get(row.key, Counted()).right, "wrong": found.get(row.key, Counted()).wrong}
        for row in TABLE
    ]  # fmt: skip
    return {"schema": SCHEMA, "cases": cases, "causes": rows, "named_by_nothing": []}
