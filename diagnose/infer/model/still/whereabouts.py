"""The user's function in which a rank spends most of the window, and what it waits for there.

share(function, wait) of a rank = sum of β over the patterns of its training thread (the main
thread, where no step was seen) whose lowest frame of the user's code is that function and that wait
for the same thing. The rank's place is the pair with the largest share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.infer.fleet.model import Patterns
from rankscope.diagnose.infer.model.still.starting import group_call
from rankscope.observer.window.stacks import StackFrame
from rankscope.observer.window.users_code import UsersCode, users_code
from rankscope.probes.base.arrays import Floats, Ints

_COMPUTES = ""
_SLEEPS = "asleep"
_RANKS = "for other ranks"
_SOCKETS = ("connect", "accept", "send", "recv")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is: a user's function ('' without a stack), and what it waits for there.

    `inside`: the library function called in it, '' if none; `waits_for`: words, '' if it computes.
    """

    name: str
    file: str
    line: int
    inside: str
    waits_for: str

    @property
    def at_work(self) -> bool:
        """Whether it computes, or sleeps in the user's own code; a sleep inside a library may poll a lock."""
        return self.waits_for == _COMPUTES or (self.waits_for == _SLEEPS and not self.inside)

    @property
    def for_ranks(self) -> bool:
        """Whether it waits for other ranks."""
        return self.waits_for.startswith(_RANKS)

    @property
    def held(self) -> bool:
        """Whether it waits for something other than ranks."""
        return not self.at_work and not self.for_ranks

    @property
    def function_words(self) -> str:
        """The user's function with its place: `load (utils.py:12)`."""
        if not self.name:
            return "functions that were not seen"
        return f"{self.name} ({self.file.rpartition('/')[2]}:{self.line})" if self.file else self.name

    @property
    def of_one(self) -> str:
        """The text for one rank: `waits in load (utils.py:12) for a file lock`."""
        verb, _, rest = self.text.partition(" ")
        return f"{verb}s {rest}"

    @property
    def text(self) -> str:
        """The text for several ranks: `wait in load (utils.py:12) for a file lock`."""
        function = self.function_words
        inside = f", in its call of {self.inside}," if self.inside else ""
        if self.waits_for and self.waits_for != _SLEEPS:
            return f"wait in {function}{inside} {self.waits_for}"
        return f"{'sleep' if self.waits_for else 'compute'} in {function}{inside}".rstrip(",")


def place_of(table: Patterns, row: int) -> tuple[Place, float] | None:
    """Return (place, share of the window) where a rank's training thread spends most time; None if unseen."""
    mine = (table.rank == row) & (table.thread.codes == table.thread.code("training"))
    return _place(table, np.flatnonzero(mine & (table.beta > 0)), table.beta)


def places(table: Patterns, ranks: int) -> list[Place | None]:
    """Place of each of the first `ranks` ranks; None where no pattern was seen."""
    rows = np.flatnonzero((table.thread.codes == table.thread.code("training")) & (table.beta > 0))
    rows = rows[np.argsort(table.rank[rows], kind="stable")]
    edges = np.searchsorted(table.rank[rows], np.arange(ranks + 1))
    found = [_place(table, rows[edges[rank] : edges[rank + 1]], table.beta) for rank in range(ranks)]
    return [each[0] if each is not None else None for each in found]


def places_of_threads(table: Patterns, row: int) -> list[tuple[Place, float]]:
    """(place, share) of each other Python thread of a rank that is mostly at one place.

    Threads of libraries without a user's function are left out.
    """
    mine = np.flatnonzero(
        (table.rank == row) & (table.thread.codes == table.thread.code("other")) & (table.stack.codes >= 0)
    )
    found = [_place(table, np.array([each]), np.ones(len(table))) for each in mine.tolist()]
    return [each for each in found if each is not None and each[0].name]


def _place(table: Patterns, mine: Ints, weight: Floats) -> tuple[Place, float] | None:
    """Return the place with most weight in a thread, and the sum of its weight, at most 1; None without patterns.

    `mine`: pattern rows of the thread; `weight`: by row of the table, such as the share of the window.
    The sum is not divided by the weight of the whole thread.
    """
    stacks = {each: _frames(table, each) for each in mine.tolist()}
    users = users_code((frames, float(weight[each])) for each, frames in stacks.items())
    shares: dict[tuple[StackFrame, str], float] = {}
    inside: dict[tuple[StackFrame, str], dict[str, float]] = {}
    for each, frames in stacks.items():
        of_user, below = _split(frames, users)
        waits = waits_for(table, each)
        if waits and (call := group_call(frames)):
            waits, below = _RANKS, call
        key, share = (of_user, waits), float(weight[each])
        shares[key] = shares.get(key, 0.0) + share
        names = inside.setdefault(key, {})
        names[below] = names.get(below, 0.0) + share
    if not shares:
        return None
    key = max(shares, key=lambda each: shares[each])
    function, reason = key
    below = max(inside[key], key=lambda each: inside[key][each])
    return Place(*function, below, reason), min(shares[key], 1.0)


def _frames(table: Patterns, row: int) -> list[StackFrame]:
    """Frames of a pattern, root first; without a stack its function or caller alone, if its file is known."""
    if table.stack.codes[row] >= 0:
        return table.stack.of(int(table.stack.codes[row]))
    name = table.name.at(row) if table.kind.at(row) == "python" else table.caller.at(row)
    return [StackFrame(name, table.file.at(row), int(table.line[row]))] if table.file.at(row) else []


def _split(frames: Sequence[StackFrame], users: UsersCode) -> tuple[StackFrame, str]:
    """Return (lowest frame of the user's code, name of the leaf in a library below it, '' if none).

    Without a frame of the user's: (the leaf, '').
    """
    lowest = max((at for at, frame in enumerate(frames) if users.has(frame.file)), default=-1)
    if lowest < 0:
        return (frames[-1] if frames else StackFrame("", "", 0)), ""
    return frames[lowest], frames[-1].name if lowest < len(frames) - 1 else ""


def waits_for(table: Patterns, row: int) -> str:
    """What a pattern waits for, in words that follow `waits`; '' where it computes."""
    kind, name, detail = table.kind.at(row), table.name.at(row), table.detail.at(row)
    of = f", {detail}" if detail else ""
    if kind == "python":
        return _SLEEPS if detail == "sleep" else _COMPUTES
    if kind == "sched":
        return _COMPUTES if name == "ready" else "to be continued: it is stopped"
    if kind == "io":
        return f"for a file lock{of}" if name == "file lock" else f"for files ({name}{of})"
    if kind == "sync":
        if detail.startswith("child "):
            return f"for {detail}"
        if name == "wait child":
            return "for a child process"
        if detail.startswith("a pipe, child "):
            return f"for {detail.removeprefix('a pipe, ')} (a pipe)"
        if name in _SOCKETS or detail.startswith("a socket"):
            return f"for {detail or 'a socket'} ({name})"
        return f"for another thread or process ({name}{of})"
    return "for the GPU" if kind in ("gpu", "memory") else f"{_RANKS} ({name})"
