"""Names for what a thread was doing: rows of the pattern table before they are measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankscope.observer.steps.markers import CallPath
from rankscope.observer.window.stacks import StackFrame


@dataclass(frozen=True, slots=True)
class StackName:
    """A Python stack in names: its leaf function, and all of its frames root→leaf by first lines.

    `site`: a number for the place in the code, down to the line in each frame, the same on all ranks that run it; 0 where it is not
    known. `in_optimiser`: an optimiser's own code is on the stack. `path`: the calls that lead there, root→leaf, empty where one is not
    known.
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
        """For people: `a (f.py:1);b (g.py:2)`."""
        return ";".join(f"{frame.name} ({frame.file}:{frame.line})" for frame in self.frames)


NO_STACK = StackName("", "", 0)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who held the GIL while another thread waited for it: a function ('' and 0 where it was not seen) on a thread."""

    name: str
    file: str
    line: int
    thread: str


@dataclass(frozen=True, slots=True)
class FunctionKey:
    """What tells two functions apart (DESIGN.md): kind, name, where; `stack` tells callers apart, `holder` who is waited for."""

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
        """The same function whoever called it."""
        return replace(self, stack=())

    def called_from(self, stack: StackName) -> FunctionKey:
        """The same function in this Python function."""
        return replace(self, file=stack.file, line=stack.line, caller=stack.name, stack=stack.frames)


def python(stack: StackName, detail: str = "") -> FunctionKey:
    """A Python function that runs, or (detail 'sleep') waits by its own will."""
    return FunctionKey("python", stack.name or "(not sampled)", stack.file, stack.line, detail, "", stack.frames, "cpu")


def collector(stack: StackName) -> FunctionKey:
    """The garbage collector, with the function that it interrupted."""
    return FunctionKey("python", "gc", stack.file, stack.line, "gc", stack.name, stack.frames, "cpu")


def waiting(
    kind: str, name: str, detail: str, stack: StackName, resource: str = "none", holder: Holder | None = None
) -> FunctionKey:
    """Something other than Python that a Python function waits in: file and line say which one."""
    return FunctionKey(kind, name, stack.file, stack.line, detail, stack.name, stack.frames, resource, holder)
