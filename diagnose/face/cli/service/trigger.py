"""`rankscope trigger`: ask the running service for a closer look now."""

from __future__ import annotations

import sys
from pathlib import Path

from rankscope.diagnose.service.place import WatchPlace
from rankscope.probes.base.errors import EXIT_HEALTHY, MissingFeature


class NobodyWatches(MissingFeature):
    """No service runs on this host."""

    help = "Start one: `rankscope watch`; or look now, without one: `rankscope diagnose`."


def run(*, state: Path, job: str | None) -> int:
    """Write a request, which the service reads every second. Raises NobodyWatches, OutputFailed."""
    place = WatchPlace(state)
    if not place.is_held():
        raise NobodyWatches(f"no rankscope watch holds {state}")
    place.ask(job or "")
    sys.stderr.write("asked; what it sees is in the service's log\n")
    return EXIT_HEALTHY
