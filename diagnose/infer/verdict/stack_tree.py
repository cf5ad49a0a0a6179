"""Stacks of all ranks in a hang as one tree, which shows the ranks that did not follow the others.

Each node is a frame with its ranks; `missing` are ranks in the caller's frame but not in this one.
Numbers are folded to `0-3,6`, so that 10,000 ranks in one frame take one short line. Below a frame,
those with fewer ranks come first. A leaf in brackets is no Python function: a wait, native code, a
process that ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rankscope.diagnose import budgets
from rankscope.diagnose.text import clean, rank_list, short

NAME, _FILE = 60, 400


@dataclass(frozen=True, slots=True)
class StackNode:
    """A frame in the tree.

    `ranks`, `missing`: sorted numbers. `file`: '' for a wait or native code.
    """

    name: str
    file: str
    line: int
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    children: tuple[StackNode, ...]

    @property
    def place(self) -> str:
        """Short location, 'train.py:81'; '' if it is no Python function."""
        name = self.file.rpartition("/")[2]
        return clean(f"{name}:{self.line}" if self.line > 0 else name, 80)

    @property
    def state(self) -> str:
        """Text of a leaf in brackets, 'waits for other ranks (allreduce)'; '' for a function."""
        return clean(self.name[1:-1]) if not self.file and self.name[:1] == "[" and self.name[-1:] == "]" else ""

    @property
    def text(self) -> str:
        """Name with location, 'backward (train.py:81)'."""
        return f"{short(self.name, NAME)} ({self.place})" if self.place else short(self.name, NAME)

    @property
    def but(self) -> str:
        """The missing ranks, 'rank 5', if fewer than those here; else ''."""
        return rank_list(self.missing) if 0 < len(self.missing) < len(self.ranks) else ""

    @property
    def chain(self) -> list[StackNode]:
        """This node and the frames below it as long as all its ranks are in one and the same frame."""
        chain = [self]
        while len(chain[-1].children) == 1 and chain[-1].children[0].ranks == self.ranks:
            chain.append(chain[-1].children[0])
        return chain

    @property
    def ending(self) -> tuple[int, ...]:
        """Ranks whose stack ends here, while others have a frame below; empty if no rank has."""
        below = {rank for child in self.children for rank in child.ranks}
        return tuple(rank for rank in self.ranks if rank not in below) if self.children else ()


def fold(ranks: Iterable[int]) -> str:
    """Format sorted numbers as '0-3,6'; '' for none."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def as_json(node: StackNode) -> dict[str, Any]:
    """Convert the tree to JSON-compatible data."""
    return {
        "function": clean(node.name, 400), "file": clean(node.file, _FILE), "line": node.line, "ranks": fold(node.ranks),
        "missing": fold(node.missing), "children": [as_json(child) for child in node.children],
    }  # fmt: skip


def from_json(content: Any) -> StackNode | None:
    """Parse what `as_json` made; None for anything else."""
    try:
        # Levels besides frames: the root, a wait, and an omission.
        return _node(content, budgets.DEPTH_MOST + 3)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _node(content: Any, depth: int) -> StackNode:
    """Parse a node and all below it, at most `depth` levels. Raises ValueError, KeyError or TypeError."""
    if not depth:
        raise ValueError("deeper than any tree of ours")
    children = tuple(_node(child, depth - 1) for child in content["children"])
    ranks, missing = unfold(content["ranks"]), unfold(content["missing"])
    return StackNode(str(content["function"]), str(content["file"]), int(content["line"]), ranks, missing, children)


def unfold(text: str) -> tuple[int, ...]:
    """Parse '0-3,6' into numbers. ValueError if invalid, or more than WORLD_MOST."""
    found: list[int] = []
    for span in filter(None, text.split(",")):
        first, _, last = span.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if len(found) + len(numbers) > budgets.WORLD_MOST:
            raise ValueError("more ranks than any job has")
        found += numbers
    return tuple(found)


def lines(node: StackNode) -> Iterator[tuple[int, str]]:
    """Yield (depth, text) of each line that shows the tree.

    A chain of frames with equal ranks is one line, abbreviated.
    """
    stack = [(0, node)]
    while stack:
        depth, top = stack.pop()
        chain = top.chain
        but = f" (not {top.but})" if top.but else ""
        here = f"; here: {rank_list(ending)}" if (ending := chain[-1].ending) else ""
        yield depth, f"{rank_list(top.ranks)}{but}: {_chain_text([one for one in chain if one.name])}{here}"
        stack.extend((depth + 1, child) for child in reversed(chain[-1].children))


def _chain_text(chain: list[StackNode]) -> str:
    """Format a chain as 'main (train.py:140) > … 3 frames … > backward (tensor.py:9) > [futex]'.

    'in different places' for an empty one.
    """
    if not chain:
        return "in different places"
    words = [one.text for one in chain]
    if len(words) > 4:
        words = [words[0], f"… {len(words) - 3} frames …", *words[-2:]]
    return " > ".join(words)
