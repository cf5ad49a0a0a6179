"""Python stacks as a tree: frames and callers shared by many stacks are stored once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rankscope.observer.window.rows import StackRow


class StackFrame(NamedTuple):
    """One Python function on a stack, by its first line. A tuple, as stacks are compared and hashed
    for each activity.
    """

    name: str
    file: str
    line: int


LEFT_OUT = StackFrame("…", "?", 0)  # replaces frames of a stack that is too long


class StackTree:
    """Numbers each distinct stack by its leaf's row in the table `stacks`."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, StackFrame], int] = {}

    def add(self, frames: Iterable[StackFrame]) -> int:
        """Return the number of a stack, given root first; -1 for one without frames."""
        at = -1
        for frame in frames:
            at = self._numbers.setdefault((at, frame), len(self._numbers))
        return at

    def rows(self) -> list[StackRow]:
        """Return the table; callers come before callees."""
        return [StackRow(parent, *frame) for parent, frame in self._numbers]
