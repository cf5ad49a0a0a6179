"""Who may speak first where not everybody can: lists that are cut, or looked at while there is time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


def in_turn(items: Iterable[_Item], kind: Callable[[_Item], Hashable]) -> list[_Item]:
    """One of each kind, then the second of each, and so on: a crowd of one kind pushes nobody of another out."""
    seen: Counter[Hashable] = Counter()
    turns: list[tuple[int, _Item]] = []
    for item in items:
        turns.append((seen[kind(item)], item))
        seen[kind(item)] += 1
    return [item for _, item in sorted(turns, key=lambda turn: turn[0])]
