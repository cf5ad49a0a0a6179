"""Work that is done inside the confined process, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable

from rankscope.observer.apart.windows import windows_of
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Manifest
from rankscope.observer.window.schema import TABLES

Say = Callable[[str], None]


def said(work: Callable[[Say], None]) -> list[str]:
    """What the confined process says while it works."""
    lines: list[str] = []

    def run(say: Say) -> list[Window]:
        work(say)
        return []

    assert windows_of(run, lines.append) == []
    return lines


def tried(attempts: dict[str, Callable[[], object]]) -> dict[str, str]:
    """What came of each attempt inside: the error's number, else 'done'."""

    def run(say: Say) -> None:
        for name, attempt in attempts.items():
            try:
                attempt()
                say(f"{name}=done")
            except OSError as error:
                say(f"{name}={error.errno}")

    return dict(line.split("=", 1) for line in said(run))


def opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


def tried_inside(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return str(error.errno)
    return "done"


def window(note: str) -> Window:
    """An empty window with a note."""
    manifest = Manifest(WINDOW_SCHEMA, "host", 1.0, 2.0, ("job",), "0", notes=(note,))
    return Window(manifest, **{name: schema.empty_table() for name, schema in TABLES.items()})
