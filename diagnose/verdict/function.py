"""A function as named in the verdict."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A function as named in the verdict: kind, name, file and first line."""

    kind: str
    name: str
    file: str
    line: int
