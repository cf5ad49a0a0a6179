"""The JSON that `rankscope blackbox --json` prints: the recordings of the service, one or the list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.verdict.as_json import timestamp
from rankscope.observer.watch.blackbox import frozen_in, lines_of
from rankscope.probes.base.errors import MissingFeature, UsageError
from rankscope.probes.base.folders import opened_folder, read_plain

SCHEMA = "rankscope.blackbox/1"
NOW = "now"
_WHY, _VERDICT = "why.json", "verdict.json"


class NothingKept(MissingFeature):
    """There is no folder of a service."""

    help = "Give the --state of `rankscope watch`; one that never ran here has kept nothing."


def opened_box(state: Path) -> Path:
    """Return the black box of a service's folder.

    Raises NothingKept without that folder; UnsafePlace if others could have written it.
    """
    if not state.is_dir():
        raise NothingKept(f"there is no {state}")
    box = state / "blackbox"
    if box.is_dir():
        with opened_folder(box):
            pass
    return box


def recording(box: Path, name: str) -> Path:
    """Return the folder of a recording; `now`: of the running one. Raises UsageError."""
    folder = box / "ring" if name == NOW else next((one for one in frozen_in(box) if one.name == name), None)
    if folder is None or not folder.is_dir():
        raise UsageError(f"the black box has no {name}: `rankscope blackbox` lists what it has")
    return folder


def frozen_list(box: Path) -> list[dict[str, Any]]:
    """Return the frozen recordings, oldest first, and why each was frozen."""
    return [{"name": path.name, "why": why_of(path) or None} for path in frozen_in(box)]


def as_object(folder: Path) -> dict[str, Any]:
    """Return a recording as JSON, with its lines in order of time."""
    dated = [{**line, "time": timestamp(line["time"])} for line in lines_of(folder)]
    return {"schema": SCHEMA, "why": why_of(folder) or None, "verdict": verdict_of(folder) or None, "lines": dated}


def why_of(folder: Path) -> dict[str, Any]:
    """Read the event for which a recording was frozen; empty if there is none."""
    return _read(folder / _WHY)


def verdict_of(folder: Path) -> dict[str, Any]:
    """Read the verdict that came after a recording was frozen; empty if there is none."""
    return _read(folder / _VERDICT)


def _read(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; {} if there is none."""
    try:
        content = json.loads(read_plain(path, budgets.FILE_BYTES_MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
