"""Stacks of all ranks of a hanging job as one tree (verdict/stack_tree.py).

stack(r) = the stack of the training thread with the largest Σ β, and below it what it waits for, or
           the native function that runs.

For a rank that is inside a collective at the end of the window only its collectives count, because
a window may begin long before the hang. Windows contain Python stacks, and of native code the
function with most samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.fleet.model import Fleet, Patterns
from rankscope.diagnose.infer.model.still.whereabouts import waits_for
from rankscope.diagnose.infer.verdict.stack_tree import StackNode
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Ints

_UNSEEN = StackFrame("[no stack was seen]", "", 0)


def merged_stacks(fleet: Fleet) -> StackNode:
    """Build the tree of all ranks; its root has no frame and lists the job's unobserved ranks.

    In a large fleet, of which only a part is read, unobserved ranks are not listed.
    """
    table, numbers = fleet.patterns, fleet.ranks.number
    longest = _longest(fleet)
    known: dict[tuple[int, int, str], tuple[StackFrame, ...]] = {}
    at: dict[tuple[StackFrame, ...], list[int]] = {}
    for row, each in enumerate(longest.tolist()):
        frames: tuple[StackFrame, ...] = (_ended(fleet.ranks.state[row]) or _UNSEEN,)
        if each >= 0 and fleet.ranks.state[row] != "exited":
            leaf = _leaf(table, each, fleet.ranks.state[row])
            # Thousands of ranks share few stacks.
            key = (int(table.stack.codes[each]), int(table.line[each]), leaf)
            if key not in known:
                known[key] = (*_shortened(_python(table, each)), StackFrame(leaf, "", 0))
            frames = known[key]
        at.setdefault(frames, []).append(int(numbers[row]))
    absent = () if fleet.looked_at else tuple(fleet.ranks.missing().tolist())
    ranks = tuple(int(number) for number in numbers)
    return StackNode("", "", 0, ranks, absent, _children(list(at.items()), 0, ranks))


def _longest(fleet: Fleet) -> Ints:
    """Return, by rank, the row of the longest pattern of its longest stack; -1 without one.

    For a rank inside a collective at the end only its collectives count.
    """
    table = fleet.patterns
    found = np.full(len(fleet.ranks), -1, dtype=np.int64)
    share, stacks = table.share, table.stack.codes.astype(np.int64)
    rows = np.flatnonzero((table.thread.codes == table.thread.code("training")) & (share > 0))
    waits = table.kind.codes[rows] == table.kind.code("collective")
    within = np.zeros(len(fleet.ranks), dtype=bool)
    within[table.rank[rows[waits]]] = True
    within &= fleet.ranks.in_collective_s > 0
    rows = rows[waits | ~within[table.rank[rows]]]
    if len(rows):
        key = table.rank[rows].astype(np.int64) * (int(stacks.max()) + 2) + stacks[rows] + 1  # -1: no stack
        _, which = np.unique(key, return_inverse=True)
        of_stack = np.bincount(which.reshape(-1), share[rows])[which.reshape(-1)]
        ordered = rows[np.lexsort((share[rows], of_stack))]
        found[table.rank[ordered]] = ordered  # of several the last, the longest
    return found


def _python(table: Patterns, row: int) -> Sequence[StackFrame]:
    """Python frames of a pattern, root first; without a stack its function or caller alone, if known."""
    code = int(table.stack.codes[row])
    if code >= 0:
        return table.stack.of(code)
    name = table.name.at(row) if table.kind.at(row) == "python" else table.caller.at(row)
    return [StackFrame(name, table.file.at(row), int(table.line[row]))] if name else []


def _shortened(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Omit the middle of a stack that is deeper than handwritten code."""
    if len(frames) <= budgets.DEPTH_MOST:
        return frames
    half = budgets.DEPTH_MOST // 2
    return [*frames[:half], StackFrame(f"[{len(frames) - 2 * half} more]", "", 0), *frames[-half:]]


def _leaf(table: Patterns, row: int, state: str) -> str:
    """Words in brackets on what a rank does at a pattern: '[waits for files (read)]', '[stopped]'.

    `state`: of the rank.
    """
    if state == "stopped":
        return "[stopped]"
    if table.kind.at(row) == "python":
        native = table.native.at(row) if table.native is not None else ""
        return "[sleeps]" if table.detail.at(row) == "sleep" else f"[{native or 'computes'}]"
    if table.kind.at(row) == "sched":
        return "[waits for a CPU]"
    return f"[waits {waits_for(table, row)}]"


def _ended(state: str) -> StackFrame | None:
    """The frame of a process that has ended; None for other states."""
    return StackFrame("[the process has ended]", "", 0) if state == "exited" else None


def _children(
    stacks: list[tuple[tuple[StackFrame, ...], list[int]]], depth: int, above: tuple[int, ...]
) -> tuple[StackNode, ...]:
    """Build the nodes of the frames at `depth`, those of fewest ranks first, with all nodes below them.

    `stacks`: (frames, rank numbers); `above`: the parent's ranks, of which each node lists the
    missing ones.
    """
    by_frame: dict[StackFrame, list[tuple[tuple[StackFrame, ...], list[int]]]] = {}
    for frames, ranks in stacks:
        if len(frames) > depth:
            by_frame.setdefault(frames[depth], []).append((frames, ranks))
    nodes = []
    for frame, below in by_frame.items():
        mine = tuple(sorted(rank for _, of_stack in below for rank in of_stack))
        missing = tuple(sorted(set(above) - set(mine)))
        nodes.append(StackNode(frame.name, frame.file, frame.line, mine, missing, _children(below, depth + 1, mine)))
    return tuple(sorted(nodes, key=lambda node: (len(node.ranks), node.ranks)))
