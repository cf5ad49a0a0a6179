"""What is known of a target from all its runs: kept beside its corpus, so that a run can end at any moment and another go on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

_FILE = "record.json"


@dataclass(slots=True)
class Record:
    """Sums over all runs with one source of the parser. `failures`: where something went wrong, and what.

    kept_inputs, kept_cpu_seconds: of these, what the committed record has already (`ledger.py`).
    """

    inputs: int = 0
    cpu_seconds: float = 0.0
    slowest_s: float = 0.0
    most_bytes: int = 0  # more than at rest, of one input
    failures: dict[str, str] = field(default_factory=dict)
    source: str = ""
    kept_inputs: int = 0
    kept_cpu_seconds: float = 0.0

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{_FILE}.{os.getpid()}"
        partial.write_text(json.dumps(asdict(self), indent=1))
        partial.replace(folder / _FILE)


def begun(folder: Path, source: str) -> Record:
    """What a run goes on with: what was counted, and what failed, with another source is not its own."""
    known = read(folder)
    return known if known.source == source else Record(source=source)


def read(folder: Path) -> Record:
    """What was written there; an empty one where nothing was."""
    try:
        return Record(**json.loads((folder / _FILE).read_text()))
    except FileNotFoundError:
        return Record()
