"""Results in a file: one case a line, so that records of several runs are merged by anybody; written in one piece, by one at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from chaoskit.case import Result


def read(path: Path) -> dict[str, Result]:
    """Results by key; none where none were written."""
    if not path.exists():
        return {}
    return {one["key"]: Result(**{**one, "problems": tuple(one["problems"])}) for one in json.loads(path.read_text())}


def keep(path: Path, result: Result) -> None:
    """Beside what others have kept there meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        write(path, {**read(path), result.key: result})


def write(path: Path, done: dict[str, Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    lines = ",\n".join(json.dumps(asdict(one)) for _, one in sorted(done.items()))
    partial.write_text(f"[\n{lines}\n]\n")
    partial.replace(path)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
