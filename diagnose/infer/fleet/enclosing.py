"""Attribute generators, comprehensions and lambdas to the function that encloses them.

`busy.<locals>.<genexpr>` is enclosed by `busy` of the same file. Its line is that of the nearest
`busy` among its callers, else of any `busy` seen in that file, else the frame's own. Before CPython
3.11 a frame is named `<genexpr>` alone: then the nearest caller in the same file that begins above
it encloses it. A frame without an enclosing function keeps its name, such as a lambda at the top of
a file. Stacks and function names are both rewritten, so that their times add up to one function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose.infer.fleet.labels import GilHolder, Holders, Labels
from rankscope.diagnose.infer.fleet.model import Patterns
from rankscope.diagnose.infer.fleet.stacks import Stacks, merged
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Ints

_COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
_NAMELESS = (*_COMPREHENSIONS, "<lambda>")
_LOCALS = ".<locals>"
_Place = tuple[str, str]  # name, file


def is_nameless(name: str) -> bool:
    """Whether a function name is that of a generator, a comprehension or a lambda."""
    return name.endswith(_NAMELESS)


def holder_name(name: str) -> str:
    """Return the enclosing function that a qualified name contains: 'busy' of 'busy.<locals>.<genexpr>'.

    '' where the name does not contain it; the name itself if it is not nameless.
    """
    end = len(name)
    while name.endswith(_NAMELESS, 0, end):
        end = max(name.rfind(".", 0, end), 0)
        if name.endswith(_LOCALS, 0, end):
            end -= len(_LOCALS)
    return name[:end]


def holder_of(frame: StackFrame, callers: Sequence[StackFrame], lines: Mapping[_Place, int]) -> StackFrame:
    """Enclosing function of a frame; the frame itself if it has a name or nothing encloses it.

    `callers`: root first, rewritten already. `lines`: first line of each function seen, by name and
    file.
    """
    if not is_nameless(frame.name):
        return frame
    name = holder_name(frame.name)
    for caller in reversed(callers):
        if caller.file != frame.file or is_nameless(caller.name):
            continue
        if caller.name == name or (not name and _may_hold(caller, frame)):
            return caller
    return StackFrame(name, frame.file, lines.get((name, frame.file), frame.line)) if name else frame


def _may_hold(caller: StackFrame, frame: StackFrame) -> bool:
    """Whether a caller in the same file can enclose the frame: it begins no later, and a module encloses no lambda."""
    lambda_at_top = frame.name.endswith("<lambda>") and caller.name == "<module>"
    return caller.line <= frame.line and not lambda_at_top


def with_holders(patterns: Patterns) -> Patterns:
    """Rename nameless functions, callers, stack frames and GIL holders to their enclosing
    functions."""
    if not any(map(is_nameless, (*patterns.name.values, *patterns.caller.values, *_names(patterns.stack)))):
        return patterns
    lines: dict[_Place, int] = {}
    for each in patterns.stack.frames:
        lines.setdefault((each.name, each.file), each.line)
    held = replace(patterns, stack=_held(patterns.stack, lines), holder=_held_gil(patterns.holder, lines))
    python = patterns.kind.codes == patterns.kind.code("python")
    name, line = _renamed(held, held.name, np.flatnonzero(python), lines)
    held = replace(held, name=name, line=line)
    caller, line = _renamed(held, held.caller, np.flatnonzero(~python), lines)
    return replace(held, caller=caller, line=line)


def _names(stack: Stacks) -> list[str]:
    """Function names of all distinct frames, by frame number."""
    return [frame.name for frame in stack.frames]


def _held(stack: Stacks, lines: Mapping[_Place, int]) -> Stacks:
    """Return the stacks with nameless frames replaced by the functions that enclose them.

    A frame whose caller encloses it is merged with it. `lines`: first line of each function seen,
    by name and file.
    """
    nameless = np.array([is_nameless(name) for name in _names(stack)], dtype=bool)
    wanted = np.flatnonzero(nameless[stack.frame]) if len(nameless) else np.empty(0, dtype=np.int64)
    if not len(wanted):
        return stack
    frames = list(stack.frames)
    place = {frame: number for number, frame in enumerate(frames)}
    frame, parent = stack.frame.copy(), stack.parent.copy()
    same = np.arange(len(parent))  # node number after merging
    for node in wanted.tolist():  # a caller has the smaller number
        callers = [frames[code] for code in _path(int(parent[node]), parent, frame)]
        holder = holder_of(frames[int(frame[node])], callers, lines)
        frame[node] = place.setdefault(holder, len(place))
        frames += [holder] * (len(place) > len(frames))
        above = int(same[parent[node]]) if parent[node] >= 0 else -1
        if above >= 0 and frame[above] == frame[node]:
            same[node] = above
    parent = np.where(parent >= 0, same[parent], -1)
    codes = np.where(stack.codes >= 0, same[stack.codes], -1)
    return merged(codes, parent, frame, tuple(frames))


def _path(node: int, parent: Ints, frame: Ints) -> list[int]:
    """Frame numbers of the stack that ends at a node, root first; empty for node -1."""
    found = []
    while node >= 0:
        found.append(int(frame[node]))
        node = int(parent[node])
    return found[::-1]


def _renamed(patterns: Patterns, names: Labels, rows: Ints, lines: Mapping[_Place, int]) -> tuple[Labels, Ints]:
    """Rename nameless functions in `rows` by the leaf of their stack, without one by the qualified name.

    `lines`: first line of each function, by name and file. Returns the labels and the line of every
    pattern; other rows keep theirs.
    """
    place = {text: code for code, text in enumerate(names.values)}
    nameless = np.array([is_nameless(name) for name in names.values], dtype=bool)
    codes, line, stack = names.codes.copy(), patterns.line.copy(), patterns.stack
    for row in rows[nameless[codes[rows]]].tolist() if len(nameless) else ():
        node = int(stack.codes[row])
        frame = StackFrame(names.at(row), patterns.file.at(row), int(line[row]))
        held = stack.frames[int(stack.frame[node])] if node >= 0 else holder_of(frame, (), lines)
        codes[row], line[row] = place.setdefault(held.name, len(place)), held.line
    return Labels(codes, tuple(place)), line


def _held_gil(holders: Holders | None, lines: Mapping[_Place, int]) -> Holders | None:
    """Rename nameless GIL holders to their enclosing functions; `lines`: first line by (name, file)."""
    if holders is None:
        return None
    held = []
    for each in holders.values:
        frame = holder_of(StackFrame(each.name, each.file, each.line), (), lines)
        held.append(GilHolder(frame.name, frame.file, frame.line, each.thread))
    return replace(holders, values=tuple(held))
