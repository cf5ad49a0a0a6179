"""Fingerprints of what the cases run: a result is worth something for those sources alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

from chaoskit.scene import DIAGNOSE, RECORD, SWEEP

REPOSITORY = Path(__file__).resolve().parents[2]
_SUFFIXES = (".py", ".c", ".h")
ROOMS = {
    RECORD: ("probes", "unwinder", "observer", "diagnose/cli", "diagnose/collector.py"),
    DIAGNOSE: ("probes", "unwinder", "observer", "diagnose"),
    SWEEP: ("probes", "diagnose/cli", "diagnose/sweep", "diagnose/collector.py"),
}  # fmt: skip


def fingerprint(command: str, repository: Path = REPOSITORY) -> str:
    """Of all that the command is made of, by names and content; 16 hexadecimal digits."""
    whole = hashlib.sha256()
    for room in ROOMS[command]:
        place = repository / room
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in _SUFFIXES and path.is_file():
                whole.update(f"{path.relative_to(repository)}\0".encode())
                whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]


def fingerprints() -> dict[str, str]:
    """By command."""
    return {command: fingerprint(command) for command in ROOMS}
