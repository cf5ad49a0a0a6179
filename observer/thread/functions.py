"""Keys for what a thread was doing: rows of the pattern table before they are measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankscope.observer.steps.markers import CallPath
from rankscope.observer.window.stacks import StackFrame


@dataclass(frozen=True, slots=True)
class StackName:
    """A Python stack in names: its leaf function, and all of its frames root→leaf by first lines.

    `site`: a hash of the call site, down to the line in each frame, equal on all ranks that run it;
    0 if unknown. `in_optimiser`: an optimiser's own code is on the stack. `path`: the calls that
    lead there, root→leaf, empty if one is unknown.
    """

    name: str
    file: str
    line: int
    frames: tuple[StackFrame, ...] = ()
    site: int = 0
    in_optimiser: bool = False
    path: CallPath = ()

    @property
    def text(self) -> str:
        """The stack as text: `a (f.py:1);b (g.py:2)`."""
        return ";".join(f"{frame.name} ({frame.file}:{frame.line})" for frame in self.frames)


NO_STACK = StackName("", "", 0)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of the GIL while another thread waited for it: a function ('' and 0 if unseen) on
    a thread.
    """

    name: str
    file: str
    line: int
    thread: str


@dataclass(frozen=True, slots=True)
class FunctionKey:
    """The identity of a function (DESIGN.md): kind, name, location; `stack` distinguishes callers,
    `holder` GIL holders.
    """

    kind: str
    name: str
    file: str = ""
    line: int = 0
    detail: str = ""
    caller: str = ""
    stack: tuple[StackFrame, ...] = ()
    resource: str = "none"
    holder: Holder | None = None

    def without_stack(self) -> FunctionKey:
        """Return the key without its stack, the same for all callers."""
        return replace(self, stack=())

    def called_from(self, stack: StackName) -> FunctionKey:
        """Return the key with file, line, caller and stack replaced by those of the Python function that calls it."""
        return replace(self, file=stack.file, line=stack.line, caller=stack.name, stack=stack.frames)


def python(stack: StackName, detail: str = "") -> FunctionKey:
    """Return the key of a Python function that runs, or (detail 'sleep') sleeps."""
    return FunctionKey("python", stack.name or "(not sampled)", stack.file, stack.line, detail, "", stack.frames, "cpu")


def collector(stack: StackName) -> FunctionKey:
    """Return the key of the garbage collector, with the function that it interrupted."""
    return FunctionKey("python", "gc", stack.file, stack.line, "gc", stack.name, stack.frames, "cpu")


def waiting(
    kind: str, name: str, detail: str, stack: StackName, resource: str = "none", holder: Holder | None = None
) -> FunctionKey:
    """Return the key of a wait inside a Python function, which file and line identify."""
    return FunctionKey(kind, name, stack.file, stack.line, detail, stack.name, stack.frames, resource, holder)
