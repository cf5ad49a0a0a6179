"""A check's result: one Finding per examined thing (a disk, a port, a GPU), or one for the whole host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    `instance`: the thing examined, '' for the whole host; `read`: the source; `value` in `unit`: what it gave;
    `since_s`: Unix time the state began; `lasts`: a counter grew, so that only this sweep can see it (lasting.py).
    """

    id: str
    state: str
    instance: str
    read: str
    value: float | str | None
    unit: str
    expected: str
    why: str
    action: str
    since_s: float | None = None
    lasts: bool = False
