"""Python stacks of a fleet as one tree, across windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Ints

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Stacks:
    """A column of stacks: a tree node by row, -1 for none.

    The node's frame is the leaf of the stack. `parent`: the caller's node, always a smaller number,
    -1 for a root. `frame`: the node's index in `frames`.
    """

    codes: Ints
    parent: Ints
    frame: Ints
    frames: tuple[StackFrame, ...]

    @classmethod
    def none(cls, rows: int) -> Stacks:
        """A column of `rows` rows without stacks."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(np.full(rows, -1, dtype=np.int64), nothing, nothing, ())

    def of(self, node: int) -> list[StackFrame]:
        """Frames of the stack that ends at a node, root first."""
        found = []
        while node >= 0:
            found.append(self.frames[int(self.frame[node])])
            node = int(self.parent[node])
        return found[::-1]

    def folded(
        self, node: int, known: dict[int, _Value], below: Callable[[_Value, StackFrame], _Value]
    ) -> _Value:  # fmt: skip
        """Fold the frames from the root to a node into one value: below(value of the caller, frame).

        `known`: values by node so far, with that above all roots as -1; it is filled, so that each
        node is looked at once.
        """
        path, end = [], node
        while node not in known:
            path.append(node)
            node = int(self.parent[node])
        for each in reversed(path):
            known[each] = below(known[int(self.parent[each])], self.frames[int(self.frame[each])])
        return known[end]

    def followed_by(self, other: Stacks, rows: Ints) -> Stacks:
        """Append the given rows of another column; stacks in both keep one node."""
        place = {frame: number for number, frame in enumerate(self.frames)}
        number = np.array([place.setdefault(frame, len(place)) for frame in other.frames], dtype=np.int64)
        theirs = number[other.frame] if len(number) else other.frame
        shifted = np.where(other.parent >= 0, other.parent + len(self.parent), -1)
        codes = other.codes[rows]
        moved = np.where(codes >= 0, codes + len(self.parent), -1)
        return merged(
            np.concatenate([self.codes, moved]),
            np.concatenate([self.parent, shifted]),
            np.concatenate([self.frame, theirs]),
            tuple(place),
        )


def merged(codes: Ints, parent: Ints, frame: Ints, frames: tuple[StackFrame, ...]) -> Stacks:
    """Merge equal stacks of a forest into one tree in which each occurs once, after its caller.

    `codes`: node by row, -1: none; `parent`: the caller's node, -1 for a root; `frame`: index in
    `frames` by node. Works level by level from the roots: nodes are equal if their callers and
    frames are.
    """
    edge = np.sort((parent + 1) * max(len(frames), 1) + frame)
    if (edge[1:] > edge[:-1]).all() and (parent < np.arange(len(parent))).all():  # a tree already: one window
        return Stacks(codes, parent, frame, frames)
    same = np.full(len(parent), -1, dtype=np.int64)  # the new number of each node
    new_parent, new_frame = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    children = np.argsort(parent, kind="stable")
    edges = np.searchsorted(parent[children], np.arange(-1, len(parent) + 1))
    level, count = children[: edges[1]] if len(parent) else children, 0
    while len(level):
        above = np.where(parent[level] >= 0, same[parent[level]], -1)
        key, which = np.unique((above + 1) * max(len(frames), 1) + frame[level], return_inverse=True)
        same[level] = count + which.reshape(-1)
        new_parent.append(key // max(len(frames), 1) - 1)
        new_frame.append(key % max(len(frames), 1))
        count += len(key)
        first, size = edges[level + 1], edges[level + 2] - edges[level + 1]
        inside = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        level = children[np.repeat(first, size) + inside]
    return Stacks(
        np.where(codes >= 0, same[codes], -1) if len(same) else codes,
        np.concatenate(new_parent),
        np.concatenate(new_frame),
        frames,
    )
