"""The JSON that `rankscope ledger --json` prints: the ledgers of jobs, as the service of this host keeps them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.diagnose.service.ledger.as_json import to_json
from rankscope.diagnose.service.ledger.entry import Ledger
from rankscope.diagnose.service.ledger.gains import gains, lost_s
from rankscope.diagnose.service.ledger.store import Store
from rankscope.diagnose.service.place import WatchPlace
from rankscope.observer.window.jobs import matching
from rankscope.probes.base.errors import UsageError


def read_ledgers(state: Path, job: str | None) -> Sequence[Ledger]:
    """Read all ledgers below the service's folder, or those of one job, the latest first.

    Raises UsageError if that job has none; UnsafePlace if others could have written them.
    """
    found = Store(WatchPlace(state).ledger, socket.gethostname()).read()
    if job is None:
        return found
    names = set(matching(job, {one.job: one.title for one in found}))
    chosen = [one for one in found if one.job in names]
    if not chosen:
        raise UsageError(f"there is no ledger of {job}: `rankscope ledger` lists what there is")
    return chosen


def as_object(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON, with its sums and the possible gains."""
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
