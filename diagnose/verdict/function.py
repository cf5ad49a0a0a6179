"""A function as the verdict names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A function as the verdict names it."""

    kind: str
    name: str
    file: str
    line: int
