"""What a running service said, one JSON line for each event: on its stdout, or in its log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


def events(log: Path) -> list[dict[str, Any]]:
    """All of them until now; a line that is being written is none yet."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def first(place: Path, kind: str, port: int, errors: Path, seconds: float) -> dict[str, Any]:
    """The first event of that kind about the job of that port, as soon as it is there; `errors`: the service's stderr, for a failure."""
    log, deadline = place / "events.jsonl", time.monotonic() + seconds
    while time.monotonic() < deadline:
        for event in events(log):
            if event["kind"] == kind and str(port) in event["job"]:
                return event
        time.sleep(0.2)
    raise AssertionError(f"no {kind}: {errors.read_text() if errors.exists() else ''} {events(log)}")
