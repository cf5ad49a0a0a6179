"""`rankscope ledger`: where each job's hours went, as the service of this host keeps it."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from rankscope.diagnose.service.ledger.as_json import to_json
from rankscope.diagnose.service.ledger.entry import Ledger
from rankscope.diagnose.service.ledger.gains import gains, lost_s
from rankscope.diagnose.service.ledger.store import Store
from rankscope.diagnose.service.place import WatchPlace
from rankscope.observer.window.jobs import matching
from rankscope.probes.base.errors import EXIT_HEALTHY, UsageError

_LISTED = 20


def run(*, state: Path, job: str | None, html: Path | None, as_json: bool) -> int:
    """Print the ledgers, or those of one job; write them as a page.

    Raises UsageError if there is none; UnsafePlace if others could have written them.
    """
    if html is not None:
        free_place(html)
    place = WatchPlace(state)
    found = Store(place.ledger, socket.gethostname()).read()
    chosen = found if job is None else _meant(found, job)
    if job is not None and not chosen:
        raise UsageError(f"there is no ledger of {job}: `rankscope ledger` lists what there is")
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


def _meant(found: Sequence[Ledger], job: str) -> list[Ledger]:
    names = set(matching(job, {one.job: one.title for one in found}))
    return [one for one in found if one.job in names]


def as_object(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON, with its sums and what would come back."""
    return to_json(ledger, socket.gethostname()) | {
        "hours": round(ledger.total_s / 3600, 6),
        "lost_hours": round(lost_s(ledger) / 3600, 6),
        "lost_rank_hours": round(lost_s(ledger) * ledger.world / 3600, 6),
        "seconds": {kind.value: round(spent_s, 3) for kind, spent_s in ledger.seconds().items()},
        "gains": [
            {"what": one.what, "seconds": round(one.seconds, 3), "count": one.count, "action": one.action}
            for one in gains(ledger)
        ],
    }


def _list(found: Sequence[Ledger]) -> None:
    now = time.time()
    rows = []
    for one in found[:_LISTED]:
        total_h, lost_h = one.total_s / 3600, lost_s(one) / 3600
        share = f"{100 * lost_h / total_h:.0f}" if total_h else "-"
        rows.append((name_of(one), hours(total_h), hours(lost_h), share, state_of(one, now)))
    print_table(("JOB", "HOURS", "LOST", "%", "STATE"), rows)
    more = f"; {len(found) - _LISTED} more with --json" if len(found) > _LISTED else ""
    tell(f"one of them: rankscope ledger JOB{more}")
