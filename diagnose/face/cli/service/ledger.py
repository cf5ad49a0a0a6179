"""`rankscope ledger`: where each job's hours went, as the service of this host keeps it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rankscope.diagnose.face.cli.output import (
    complain,
    free_place,
    print_json,
    print_table,
    tell,
    width_of,
    write_result,
)
from rankscope.diagnose.face.cli.service.ledger_page import page
from rankscope.diagnose.face.cli.service.ledger_table import hours, lines, name_of, state_of
from rankscope.diagnose.face.documents.ledgers import as_object, read_ledgers
from rankscope.diagnose.service.ledger.entry import Ledger
from rankscope.diagnose.service.ledger.gains import lost_s
from rankscope.probes.base.errors import EXIT_HEALTHY

_LISTED = 20


def run(*, state: Path, job: str | None, html: Path | None, as_json: bool) -> int:
    """Print the ledgers, or those of one job; write them as a page.

    Raises UsageError if there is none; UnsafePlace if others could have written them.
    """
    if html is not None:
        free_place(html)
    chosen = read_ledgers(state, job)
    if html is not None:
        write_result(html, page(chosen[:_LISTED], time.time()).encode("utf-8", "replace"))
        complain(f"the page is {html}")
    if as_json:
        print_json([as_object(one) for one in chosen])
    elif not chosen:
        tell("no job has a ledger yet: `rankscope watch` begins one for each job it sees")
    elif len(chosen) == 1 or job is not None:
        blocks = ["\n".join(lines(one, width_of(sys.stdout), time.time())) for one in chosen[:_LISTED]]
        print("\n\n".join(blocks))
    else:
        _list(chosen)
    return EXIT_HEALTHY


def _list(found: Sequence[Ledger]) -> None:
    """Print a table with one row per job: hours, lost hours, and whether it runs."""
    now = time.time()
    rows = []
    for one in found[:_LISTED]:
        total_h, lost_h = one.total_s / 3600, lost_s(one) / 3600
        share = f"{100 * lost_h / total_h:.0f}" if total_h else "-"
        rows.append((name_of(one), hours(total_h), hours(lost_h), share, state_of(one, now)))
    print_table(("JOB", "HOURS", "LOST", "%", "STATE"), rows)
    more = f"; {len(found) - _LISTED} more with --json" if len(found) > _LISTED else ""
    tell(f"one of them: rankscope ledger JOB{more}")
