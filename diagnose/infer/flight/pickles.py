"""Load pickles of plain data: dicts, lists, tuples, strings, numbers. Nothing is executed.

Other pickle instructions make objects by calling named functions; these are rejected, as are
instructions that allocate memory by a number. Parts may be referenced repeatedly, so sixty bytes
can describe more than a computer can traverse: the unfolded size is counted first. Tuples as keys
are rejected too, since each lookup hashes all of them. So the length of a file bounds time and
memory.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from rankscope.diagnose import budgets
from rankscope.probes.base.errors import BadData

PARTS_MOST = budgets.PARTS_MOST  # PyTorch's default of 2,000 entries has some 100,000
_SIMPLE = frozenset((
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1", "FLOAT", "BINFLOAT", "STRING", "SHORT_BINSTRING",
    "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "EMPTY_LIST", "EMPTY_DICT",
))  # fmt: skip
_KEPT = frozenset(("BINPUT", "LONG_BINPUT", "MEMOIZE"))
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
# Kinds on the simulated stack: allowed as key, not allowed, and a mark.
_PLAIN, _TUPLE, _MARK = "plain", "tuple", "mark"


class _NoObjects(pickle.Unpickler):
    """An unpickler that finds no class: a second safeguard besides the check."""

    def find_class(self, module: str, name: str) -> Any:
        """Raise BadData: plain data names no class or function."""
        raise BadData(f"it asks for {module}.{name}: it is no plain data")


def load(content: bytes) -> Any:
    """Load plain data.

    Raises BadData if not plain or too large, and any error of pickle if damaged.
    """
    _check(content)
    found = _NoObjects(io.BytesIO(content)).load()
    if _unfolded(found) > PARTS_MOST:
        raise BadData("it repeats its parts more often than a dump does")
    return found


def _check(content: bytes) -> None:
    """Check a pickle by simulating its instructions on a stack of kinds instead of values.

    Raises BadData for a forbidden instruction, other errors for damaged content.
    """
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
    """Index of the last mark on the simulated stack. IndexError if there is none."""
    at = len(stack) - 1
    while at >= 0 and stack[at] != _MARK:
        at -= 1
    if at < 0:
        raise IndexError("no mark")
    return at


def _unfolded(whole: Any) -> int:
    """Number of parts, each counted at every reference. Raises BadData for cycles."""
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
    """Elements of a container; a dict's values."""
    if isinstance(one, dict):
        return list(one.values())
    return list(one) if isinstance(one, (list, tuple)) else []
