"""Facts on the Python stacks of a fleet: the user's lowest function, and loaders and compilers on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rankscope.diagnose.infer.fleet.model import Patterns
from rankscope.diagnose.infer.model.evidence.known_code import (
    COMPILER_FILES,
    LOADER_FILES,
    RUNNING_FILES,
    TRACING_FILES,
)
from rankscope.observer.window.stacks import StackFrame
from rankscope.observer.window.users_code import UsersCode, users_code


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What is known of one stack.

    `user`: the lowest frame of the user's code, None without one; `is_users`: it is the leaf;
    `loads`: a data loader's code is on the stack; `compiles`: a compiler's.
    """

    user: StackFrame | None = None
    is_users: bool = False
    loads: bool = False
    compiles: bool = False


class Frames:
    """Facts on the stacks of a table of patterns, each node of the tree looked at once."""

    def __init__(self, table: Patterns) -> None:
        self._table = table
        self._known: dict[int, StackFacts] = {-1: StackFacts()}
        self._of_frame: dict[StackFrame, tuple[bool, bool, bool]] = {}

    def of(self, row: int) -> StackFacts:
        """Facts on the stack of a row of the table; on its leaf alone where the stack is unknown."""
        stack = self._table.stack
        node = int(stack.codes[row])
        if node < 0:
            leaf = self.leaf(row)
            return StackFacts() if leaf is None else self._below(StackFacts(), leaf)
        return stack.folded(node, self._known, self._below)

    def leaf(self, row: int) -> StackFrame | None:
        """The Python function of a row; None where it is unknown."""
        table = self._table
        name = table.name.at(row) if table.kind.at(row) == "python" else ""
        name = table.caller.at(row) or name
        file = table.file.at(row)
        return StackFrame(name, file, int(table.line[row])) if name and file else None

    def is_users(self, frame: StackFrame) -> bool:
        """Tell whether a frame is of the user's code."""
        return bool(frame.file) and self._users.has(frame.file)

    @cached_property
    def _users(self) -> UsersCode:
        """Decide which files are the user's: by the frames alone if possible, else by the stacks."""
        stack, plain = self._table.stack, UsersCode()
        if any(frame.name != "<module>" and plain.has(frame.file) for frame in stack.frames):
            return plain
        nodes, which = np.unique(stack.codes, return_inverse=True)
        seconds = np.bincount(which.reshape(-1), self._table.per_step_s)
        return users_code((stack.of(int(node)), float(each)) for node, each in zip(nodes, seconds, strict=True))

    def _below(self, above: StackFacts, frame: StackFrame) -> StackFacts:
        """Return the facts on the stack that ends in `frame`, given those on the stack above it."""
        if frame not in self._of_frame:
            self._of_frame[frame] = (
                bool(frame.file) and self._users.has(frame.file),
                any(part in frame.file for part in LOADER_FILES),
                any(part in frame.file for part in (*COMPILER_FILES, *TRACING_FILES))
                and not any(part in frame.file for part in RUNNING_FILES),
            )
        users, loads, compiles = self._of_frame[frame]
        return StackFacts(frame if users else above.user, users, above.loads or loads, above.compiles or compiles)
