"""`rankscope causes`: what can be named, by what it shows, and how often that was right in the recorded windows."""

from __future__ import annotations

from rankscope.diagnose.cli.output import print_json, print_table, tell
from rankscope.diagnose.hypotheses.causes import SCHEMA, TABLE, Counted, counted
from rankscope.diagnose.verdict.contract import CAUSES


def run(*, as_json: bool) -> int:
    """Print the table of hypotheses; always 0."""
    found, cases = counted()
    unnamed = sorted(
        f"{component}/{cause}"
        for component, causes in CAUSES.items()
        for cause in causes
        if not any((component, cause) == (row.component, row.cause) for row in TABLE)
    )
    if as_json:
        rows = [
            {"component": row.component, "cause": row.cause, "scope": row.scope, "witness": row.witness, "told_by": row.told_by,
             "right": found.get(row.key, Counted()).right, "wrong": found.get(row.key, Counted()).wrong}
            for row in TABLE
        ]  # fmt: skip
        print_json({"schema": SCHEMA, "cases": cases, "causes": rows, "named_by_nothing": unnamed})
        return 0
    lines = [
        [f"{row.component}/{row.cause}", row.scope, _right(found.get(row.key, Counted())), row.witness] for row in TABLE
    ]
    print_table(["CAUSE", "SCOPE", "RIGHT", "BY"], lines)
    tell(f"RIGHT: how often it was right when it was named first, in {cases} recorded windows", "  ")
    tell("scope group: any of these where hosts that share something have it", "  ")
    if unnamed:
        tell(f"part of the contract, and named by nothing yet: {', '.join(unnamed)}", "  ")
    return 0


def _right(each: Counted) -> str:
    return f"{each.right}/{each.right + each.wrong}" if each.right + each.wrong else "-"
