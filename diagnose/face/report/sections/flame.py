"""Flame graph of the shown rank compared with the median peer.

width(frame)  = Σ seconds per step of the patterns with this frame (of the window if no steps)
above(frame)  = width(frame) - median over the peers, without waiting for ranks;
                frames are the same if they and their callers are
self          = the frame without its callees: shows where a function itself is slow

Anything other than Python (files, locks, collectives, the run queue) is a leaf below the function
that executed; patterns without a stack (GPU kernels) are separate roots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.face.report.chosen import Chosen
from rankscope.diagnose.face.report.content import Flame, FlameGraph
from rankscope.diagnose.infer.fleet.model import Fleet, Patterns
from rankscope.diagnose.infer.model.waits import waits
from rankscope.diagnose.stats.robust import nan_median
from rankscope.diagnose.text import clean
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Bools, Floats, Ints

_LEAST = 0.002  # narrowest frame shown, as a share of the whole width
_FRAMES_MOST = 1500
_MORE_MOST = 8
_WAITS = "collective"


@dataclass(frozen=True, slots=True)
class _Tree:
    """The shown rank's stacks, callers first.

    Anything other than Python as extra nodes at the end.
    """

    parent: Ints
    frame: tuple[StackFrame, ...]  # for a non-Python leaf: its caller's
    kind: tuple[str, ...]
    name: tuple[str, ...]  # for a non-Python leaf: the operation
    nearest: Ints  # by node of the fleet's tree: its index here, or that of the nearest caller; -1: none
    leaves: dict[tuple[int, str, str], int]


def flames_of(fleet: Fleet, chosen: Chosen) -> FlameGraph | None:
    """Build the flame graph; None if the rank has no stacks."""
    table = fleet.patterns
    training = (table.thread.codes == table.thread.code("training")) & (table.share > 0)
    mine = np.flatnonzero(training & (table.rank == chosen.culprit))
    if not (table.stack.codes[mine] >= 0).any():
        return None
    per_step_s = np.where((table.per_step_s > 0) & (table.per_step_s <= fleet.seconds), table.per_step_s, 0.0)
    stepped = bool((per_step_s[mine] > 0).any())
    seconds = per_step_s if stepped else table.share * fleet.seconds
    waiting = waits(table)
    tree = _tree_of(table, mine, waiting)
    own = _selfs(table, tree, mine, seconds, waiting)
    peers = [_selfs(table, tree, rows, seconds, waiting) for rows in _rows_of_peers(table, chosen, training)]
    usual_own = nan_median(np.stack(peers), 0) if peers else own
    works = np.array([kind != _WAITS for kind in tree.kind])
    mine_working = _with_below(tree, own * works)
    usual = nan_median(np.stack([_with_below(tree, each * works) for each in peers]), 0) if peers else mine_working
    return FlameGraph(
        who=clean(chosen.named(fleet, chosen.culprit)),
        peers=len(peers),
        unit="per step" if stepped else "of the window",
        frames=_laid_out(tree, _with_below(tree, own), mine_working - usual),
        more=_most_above(tree, own, own - usual_own),
    )


def _tree_of(table: Patterns, rows: Ints, waiting: Bools) -> _Tree:
    """Build the tree of the stacks of these pattern rows, with a leaf for each operation that is not Python.

    `waiting`: by pattern, whether it waits for other ranks.
    """
    stacks = table.stack
    known = np.zeros(len(stacks.parent), dtype=bool)
    for leaf in np.unique(stacks.codes[rows]).tolist():  # -1: no stack
        node = leaf
        while node >= 0 and not known[node]:
            known[node] = True
            node = int(stacks.parent[node])
    kept = np.flatnonzero(known)
    small = np.full(len(stacks.parent), -1, dtype=np.int64)
    small[kept] = np.arange(len(kept))
    nearest = np.full(len(stacks.parent), -1, dtype=np.int64)
    for node, parent in enumerate(stacks.parent.tolist()):
        nearest[node] = small[node] if known[node] else nearest[parent] if parent >= 0 else -1
    parent = np.where(stacks.parent[kept] >= 0, small[stacks.parent[kept]], -1).tolist()
    frames = [stacks.frames[int(number)] for number in stacks.frame[kept]]
    kinds, names = ["python"] * len(kept), [frame.name for frame in frames]
    leaves: dict[tuple[int, str, str], int] = {}
    for row in rows.tolist():
        code, name = int(stacks.codes[row]), table.name.at(row)
        kind = _WAITS if waiting[row] else table.kind.at(row)
        node = int(small[code]) if code >= 0 else -1
        if (kind != "python" or node < 0) and (node, kind, name) not in leaves:
            leaves[node, kind, name] = len(parent)
            parent.append(node)
            frames.append(frames[node] if node >= 0 else StackFrame(name, "", 0))
            kinds.append(kind)
            names.append(name)
    return _Tree(np.array(parent, dtype=np.int64), tuple(frames), tuple(kinds), tuple(names), nearest, leaves)


def _rows_of_peers(table: Patterns, chosen: Chosen, training: Bools) -> list[Ints]:
    """Return the pattern rows of each peer that has patterns on the training thread, one array per peer."""
    rows = np.flatnonzero(training & np.isin(table.rank, chosen.peers))
    order = rows[np.argsort(table.rank[rows], kind="stable")]
    edges = np.flatnonzero(np.diff(table.rank[order])) + 1
    return [each for each in np.split(order, edges) if len(each)]


def _selfs(table: Patterns, tree: _Tree, rows: Ints, seconds: Floats, waiting: Bools) -> Floats:
    """Return each node's own seconds in these pattern rows, without its callees.

    Work in functions unknown to the tree counts for the nearest known caller.
    """
    own = np.zeros(len(tree.parent))
    for row in rows.tolist():
        code, kind = int(table.stack.codes[row]), _WAITS if waiting[row] else table.kind.at(row)
        node = int(tree.nearest[code]) if code >= 0 else -1
        node = tree.leaves.get((node, kind, table.name.at(row)), -1 if kind == _WAITS else node)
        if node >= 0:
            own[node] += seconds[row]
    return own


def _with_below(tree: _Tree, own: Floats) -> Floats:
    """Return for each node the sum of its own value and those of all nodes below it."""
    total: Floats = own.copy()
    for node in range(len(total) - 1, -1, -1):
        if tree.parent[node] >= 0:
            total[tree.parent[node]] += total[node]
    return total


def _laid_out(tree: _Tree, width: Floats, above: Floats) -> tuple[Flame, ...]:
    """Lay out the frames from left to right, the widest first below each caller; narrow ones are left out.

    `width`: seconds by node, callees included; `above`: difference to the median peer.
    """
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parent.tolist()):
        below.setdefault(parent, []).append(node)
    whole = float(width[tree.parent < 0].sum())
    frames: list[Flame] = []
    waiting = [(-1, -1, 0.0, 0)]  # node, index in `frames`, left edge, depth of callees
    while waiting:
        node, place, left, level = waiting.pop()
        for each in sorted(below.get(node, []), key=lambda one: -width[one]):
            if width[each] < _LEAST * whole or len(frames) >= _FRAMES_MOST:
                continue
            frames.append(_frame(tree, each, place, float(width[each]), float(above[each]), left, level))
            waiting.append((each, len(frames) - 1, left, level + 1))
            left += float(width[each])
    return tuple(frames)


def _most_above(tree: _Tree, own: Floats, above: Floats) -> tuple[Flame, ...]:
    """Return the frames whose own time exceeds the peers' most, without waiting for ranks, worst first.

    `own`: own seconds by node; `above`: the difference to the median peer.
    """
    least = _LEAST * float(own.sum())
    order = [node for node in np.argsort(-above, kind="stable").tolist() if tree.kind[node] != _WAITS]
    return tuple(
        _frame(tree, node, -1, float(own[node]), float(above[node]), 0.0, 0) for node in order[:_MORE_MOST] if above[node] > least
    )  # fmt: skip


def _frame(
    tree: _Tree, node: int, parent: int, seconds: float, above_s: float, offset_s: float, depth: int
) -> Flame:  # fmt: skip
    """Build one frame as shown. `parent`: its caller's index, -1 for none; `offset_s`: from the left edge."""
    frame, kind, name = tree.frame[node], tree.kind[node], tree.name[node]
    place = f"{frame.file.rpartition('/')[2]}:{frame.line}" if frame.file else ""
    if kind == "sched":
        name = "waits for a CPU" if name == "ready" else name
    elif kind != "python":
        name = f"waits for other ranks: {name}" if kind == _WAITS else f"{kind}: {name}"
    if kind != "python":
        place = f"in {frame.name}" if frame.file else ""
    return Flame(parent, clean(name), clean(place), clean(kind, 20), seconds, above_s, offset_s, depth)
