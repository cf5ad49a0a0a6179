"""What the workers have counted of a target and the results do not hold yet: beside its corpus, so that a run can end at any moment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

_FILE = "counted.json"


@dataclass(slots=True)
class Counted:
    """Sums over runs of one source. `failures`: what went wrong, by the place in the code. `edges`: that the fuzzer has seen."""

    inputs: int = 0
    cpu_seconds: float = 0.0
    slowest_s: float = 0.0
    most_bytes: int = 0  # of one input, above what the process holds at rest
    failures: dict[str, str] = field(default_factory=dict)
    source: str = ""
    edges: int = 0

    def write(self, folder: Path) -> None:
        """Replace the file, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{_FILE}.{os.getpid()}"
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.replace(folder / _FILE)


def read(folder: Path, source: str = "") -> Counted:
    """What was written there for that source ('': any); empty where nothing was."""
    try:
        found = Counted(**json.loads((folder / _FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Counted(source=source)
    return found if source in ("", found.source) else Counted(source=source)


def forget(folder: Path) -> None:
    """Remove it, once the results hold it."""
    (folder / _FILE).unlink(missing_ok=True)
