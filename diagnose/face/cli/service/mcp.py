"""`rankscope mcp`: serve agents over stdin and stdout, read only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rankscope.diagnose.face.mcp import extra
from rankscope.diagnose.face.mcp.places import Places
from rankscope.probes.base.errors import EXIT_HEALTHY, NoSuchPlace, UsageError


def run(*, windows: Sequence[Path], history: Path, state: Path, most_bytes: int) -> int:
    """Serve one client until it closes stdin. Raises NoMcp without the SDK, NoSuchPlace, UsageError."""
    extra.check()
    for place in windows:
        if not place.is_dir():
            raise NoSuchPlace(f"--windows: {place} is no folder")
    if sys.stdin.isatty():
        raise UsageError(
            "an agent's client starts this, and talks to it through pipes; README.md has its configuration"
        )
    # Imported here: the SDK takes a second, and the other commands do not need it.
    from rankscope.diagnose.face.mcp.server import serve

    allowed = tuple(place.absolute() for place in windows)
    serve(Places(allowed, history.absolute(), state.absolute()), most_bytes)
    return EXIT_HEALTHY
