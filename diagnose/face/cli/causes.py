"""`rankscope causes`: list the causes, their evidence, and how often each was right in recorded
windows."""

from __future__ import annotations

from rankscope.diagnose.face.cli.output import print_json, print_table, tell
from rankscope.diagnose.face.documents.causes import as_object
from rankscope.diagnose.infer.causes.causes import TABLE, Counted, counted


def run(*, as_json: bool) -> int:
    """Print the table of hypotheses; the exit code is always 0."""
    if as_json:
        print_json(as_object())
        return 0
    found, cases = counted()
    lines = [
        [f"{row.component}/{row.cause}", row.scope, _right(found.get(row.key, Counted())), row.witness] for row in TABLE
    ]
    print_table(["CAUSE", "SCOPE", "RIGHT", "BY"], lines)
    tell(f"RIGHT: how often it was right when it was named first, in {cases} recorded windows", "  ")
    tell("scope group: any of these where hosts that share something have it", "  ")
    return 0


def _right(each: Counted) -> str:
    """Format how often a cause was right when named first, '3/4'; '-' if it never was named."""
    return f"{each.right}/{each.right + each.wrong}" if each.right + each.wrong else "-"
