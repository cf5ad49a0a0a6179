"""Where the ranks are, as one tree: what is the same on many stacks is told once, with the ranks that are there (as STAT does).

A rank is where it spent most of the window: the stack with the largest Σ β of its training thread; of a rank that is inside a
collective at the end of the window, the collective's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.diagnose.fleet.model import Fleet, Patterns
from rankscope.diagnose.report.content import Standing
from rankscope.diagnose.text import clean, rank_list
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.arrays import Floats, Ints

RANKS_MOST = 10_000
_CHAIN_BEGIN, _CHAIN_END = 2, 6  # frames of a chain that are told: where it starts, and where the ranks are
_WAITS = {
    "collective": "waits for other ranks",
    "io": "waits for files",
    "sync": "waits for another thread or process",
    "sched": "waits for a CPU",
    "gpu": "waits for the GPU",
    "memory": "waits for the GPU",
}


@dataclass(slots=True)
class _Node:
    frame: StackFrame
    waits_for: str = ""
    ranks: list[int] = field(default_factory=list)
    below: dict[tuple[StackFrame, str], _Node] = field(default_factory=dict)


def standing_of(fleet: Fleet) -> tuple[Standing, ...]:
    """The tree, where most ranks are first; ranks of which no stack was seen come last."""
    table, top = fleet.patterns, _Node(StackFrame("", "", 0))
    unseen = []
    share = table.share
    rows = np.flatnonzero((table.thread.codes == table.thread.code("training")) & (share > 0))
    order = rows[np.argsort(table.rank[rows], kind="stable")]
    edges = np.searchsorted(table.rank[order], np.arange(len(fleet.ranks) + 1))
    for row in range(min(len(fleet.ranks), RANKS_MOST)):
        number = int(fleet.ranks.number[row])
        place = _longest(table, share, order[edges[row] : edges[row + 1]], bool(fleet.ranks.in_collective_s[row] > 0))
        if place < 0:
            unseen.append((number, fleet.ranks.state[row]))
            continue
        node = top
        *callers, leaf = table.stack.of(int(table.stack.codes[place])) or [StackFrame("no Python frame", "", 0)]
        state = fleet.ranks.state[row]
        end = _waits_for(table, place) if state == "running" else state
        for key in [*((frame, "") for frame in callers), (leaf, end)]:
            node = node.below.setdefault(key, _Node(*key))
            node.ranks.append(number)
    lines = _lines(top)
    for state in sorted({state for _, state in unseen}):
        numbers = tuple(number for number, its in unseen if its == state)
        said = "" if state == "running" else clean(state, 20)
        lines.append(Standing(0, "no stack was seen", "", rank_list(numbers), said))
    return tuple(lines)


def _longest(table: Patterns, share: Floats, rows: Ints, in_collective: bool) -> int:
    """The pattern in whose stack a rank spent most of the window; -1 for none."""
    waiting = rows[table.kind.codes[rows] == table.kind.code("collective")]
    rows = waiting if in_collective and len(waiting) else rows
    if not len(rows):
        return -1
    stacks, which = np.unique(table.stack.codes[rows], return_inverse=True)
    of_stack = np.bincount(which.reshape(-1), share[rows])
    here = rows[table.stack.codes[rows] == stacks[int(np.argmax(of_stack))]]
    return int(here[int(np.argmax(share[here]))])


def _waits_for(table: Patterns, row: int) -> str:
    kind, name, detail = table.kind.at(row), table.name.at(row), table.detail.at(row)
    if kind == "python":
        return "sleeps" if detail == "sleep" else "computes"
    return f"{_WAITS.get(kind, kind)} ({name}{', ' + detail if detail else ''})"


def _lines(top: _Node) -> list[Standing]:
    """The tree as lines. Where no ranks part the frames are one chain, of which only both ends are told."""
    lines: list[Standing] = []
    waiting = [(node, 0) for node in _smallest_first(top)]
    while waiting:
        node, level = waiting.pop()
        chain = [node]
        while len(chain[-1].below) == 1:
            (below,) = chain[-1].below.values()
            if len(below.ranks) < len(node.ranks):
                break  # some of them stand in the caller itself
            chain.append(below)
        lines += _chain(chain, level)
        waiting += [(each, level + 1) for each in _smallest_first(chain[-1])]
    return lines


def _smallest_first(node: _Node) -> list[_Node]:
    return sorted(node.below.values(), key=lambda each: len(each.ranks))


def _chain(chain: list[_Node], level: int) -> list[Standing]:
    told = [
        Standing(level, clean(node.frame.name), _place(node.frame), "", clean(node.waits_for)) for node in chain
    ]  # fmt: skip
    told[0] = replace(told[0], ranks=rank_list(tuple(sorted(chain[0].ranks))))
    hidden = len(told) - _CHAIN_BEGIN - _CHAIN_END
    if hidden > 1:
        told[_CHAIN_BEGIN:-_CHAIN_END] = [Standing(level, f"… {hidden} frames …", "", "", "")]
    return told


def _place(frame: StackFrame) -> str:
    return clean(f"{frame.file.rpartition('/')[2]}:{frame.line}") if frame.file else ""
