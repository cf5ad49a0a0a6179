"""What a running service wrote to its log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


def first(place: Path, kind: str, port: int, errors: Path, seconds: float) -> dict[str, Any]:
    """The first event of that kind about the job of that port, as soon as it is there; `errors`: the service's stderr, for a failure."""
    log, deadline = place / "events.jsonl", time.monotonic() + seconds
    lines: list[str] = []
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        for event in (json.loads(line) for line in lines if line.endswith("\n")):
            if event["kind"] == kind and str(port) in event["job"]:
                return dict(event)
        time.sleep(0.2)
    raise AssertionError(f"no {kind}: {errors.read_text() if errors.exists() else ''} {lines}")
