"""Pickles of plain data: dicts, lists, tuples, strings, numbers. Nothing is executed; their length bounds the time and the room they take.

Whatever else a pickle may hold makes objects, by calling functions that it names; no such instruction is let through, nor one that
makes the reader take memory by its number. A part may stand in several places: sixty bytes can tell of more than a computer can
go through, one by one. So what they unfold to is counted first. No key is a tuple: to look one up goes through all of it.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from rankscope.diagnose import budgets
from rankscope.probes.errors import BadData

PARTS_MOST = budgets.PARTS_MOST  # a dump of PyTorch's default length, 2,000 entries, has some 100,000
_SIMPLE = frozenset((
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1", "FLOAT", "BINFLOAT", "STRING", "SHORT_BINSTRING",
    "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "EMPTY_LIST", "EMPTY_DICT",
))  # fmt: skip
_KEPT = frozenset(("BINPUT", "LONG_BINPUT", "MEMOIZE"))
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
# On the stack as it is checked: what may be a key, what may not, and a mark.
_PLAIN, _TUPLE, _MARK = "plain", "tuple", "mark"


class _NoObjects(pickle.Unpickler):
    """Finds no class: beside the check, a second lock on the same door."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadData(f"it asks for {module}.{name}: it is no plain data")


def load(content: bytes) -> Any:
    """The data. BadData where it is not plain, or more than it may be; whatever else pickle raises of one that is damaged."""
    _check(content)
    found = _NoObjects(io.BytesIO(content)).load()
    if _unfolded(found) > PARTS_MOST:
        raise BadData("it repeats its parts more often than a dump does")
    return found


def _check(content: bytes) -> None:
    """Goes through the instructions as pickle will, with the kinds of things in place of the things."""
    stack: list[str] = []
    memo: dict[int, str] = {}
    for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        name = instruction.name
        if count > PARTS_MOST:
            raise BadData("it has more parts than a dump has")
        if name in _SIMPLE:
            stack.append(_PLAIN)
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _KEPT:
            place = len(memo) if name == "MEMOIZE" else int(str(argument))
            if place > count:
                raise BadData("it numbers its parts as no pickle does")
            memo[place] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(str(argument))])
        elif name == "TUPLE" or name in _TUPLES:
            del stack[_mark(stack) if name == "TUPLE" else len(stack) - _TUPLES[name] :]
            stack.append(_TUPLE)
        elif name in ("LIST", "DICT", "APPENDS", "SETITEMS", "APPEND", "SETITEM"):
            at = {"APPEND": len(stack) - 1, "SETITEM": len(stack) - 2}.get(name)
            at = _mark(stack) if at is None else at
            items = stack[at:]
            del stack[at:]
            if name in ("DICT", "SETITEMS", "SETITEM") and _TUPLE in items[0 if name == "SETITEM" else 1 :: 2]:
                raise BadData("a key of it is a tuple")
            if name in ("LIST", "DICT"):
                stack.append(_PLAIN)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise BadData(f"it holds {name}: it is no plain data")


def _mark(stack: list[str]) -> int:
    """Where the last mark stands; IndexError where there is none."""
    at = len(stack) - 1
    while at >= 0 and stack[at] != _MARK:
        at -= 1
    if at < 0:
        raise IndexError("no mark")
    return at


def _unfolded(whole: Any) -> int:
    """How many parts there are if each is counted wherever it stands. BadData where one holds itself."""
    known: dict[int, int] = {}
    waiting: list[Any] = [whole]
    begun: set[int] = set()
    while waiting:
        one = waiting[-1]
        if id(one) in known:
            waiting.pop()
            continue
        parts = _parts(one)
        fresh = [part for part in parts if id(part) not in known and isinstance(part, (list, tuple, dict))]
        if not fresh:
            known[id(one)] = min(1 + sum(known.get(id(part), 1) for part in parts), PARTS_MOST + 1)
            waiting.pop()
            continue
        if id(one) in begun:
            raise BadData("a part of it holds itself")
        begun.add(id(one))
        waiting += fresh
    return known[id(whole)]


def _parts(one: Any) -> list[Any]:
    """What lies in a container; a dict's keys are no containers."""
    if isinstance(one, dict):
        return list(one.values())
    return list(one) if isinstance(one, (list, tuple)) else []
