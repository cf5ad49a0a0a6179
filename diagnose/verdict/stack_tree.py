"""The stacks of all ranks of a hang as one tree: who is where, and who of those that came so far did not go on.

Each node is a frame with the ranks that have it; `missing` are ranks that have its caller's frame and not this one. Numbers are folded,
`0-3,6`, so that 10,000 ranks that wait in one place are one short line. Laggards first: of the frames below one, those of fewer ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rankscope.diagnose.text import clean, short

_NAME, _FILE = 60, 400
DEPTH_MOST = 200  # of frames of a stack: other programs read the tree by recursion


@dataclass(frozen=True, slots=True)
class StackNode:
    """A frame. ranks, missing: sorted numbers. `file` is '' where it is no Python function: what is waited for, or native code."""

    name: str
    file: str
    line: int
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    children: tuple[StackNode, ...]

    @property
    def text(self) -> str:
        """'backward (train.py:81)'."""
        place = f" ({self.file.rpartition('/')[2]}:{self.line})" if self.file else ""
        return f"{short(clean(self.name), _NAME)}{clean(place, 80)}"


def fold(ranks: Iterable[int]) -> str:
    """'0-3,6' of sorted numbers; '' of none."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def as_json(node: StackNode) -> dict[str, Any]:
    """The tree for programs."""
    return {
        "function": clean(node.name, 400), "file": clean(node.file, _FILE), "line": node.line, "ranks": fold(node.ranks),
        "missing": fold(node.missing), "children": [as_json(child) for child in node.children],
    }  # fmt: skip


def lines(node: StackNode) -> Iterator[tuple[int, str]]:
    """Depth and text of each line. Frames that the same ranks have one below the other are one line: the first and the last two."""
    stack = [(0, node)]
    while stack:
        depth, top = stack.pop()
        chain = [top]
        while len(chain[-1].children) == 1 and chain[-1].children[0].ranks == top.ranks:
            chain.append(chain[-1].children[0])
        last = chain[-1]
        ended = set(last.ranks) - {rank for child in last.children for rank in child.ranks} if last.children else ()
        here = f"  here: {fold(sorted(ended))}" if ended else ""
        missing = f", not {fold(top.missing)}" if top.missing else ""
        yield depth, f"{fold(top.ranks)}{missing}: {_chain_text([one for one in chain if one.name])}{here}"
        stack.extend((depth + 1, child) for child in reversed(last.children))


def _chain_text(chain: list[StackNode]) -> str:
    """'main (train.py:140) > 3 more > backward (tensor.py:9) > [futex]'."""
    if not chain:
        return "all"
    words = [one.text for one in chain]
    if len(words) > 4:
        words = [words[0], f"{len(words) - 3} more", *words[-2:]]
    return " > ".join(words)
