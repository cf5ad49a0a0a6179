"""Names for what a thread was doing: rows of the pattern table before they are measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StackName:
    """A Python stack in words: its leaf function, and the whole of it root→leaf by first lines."""

    name: str
    file: str
    line: int
    text: str


NO_STACK = StackName("", "", 0, "")


@dataclass(frozen=True, slots=True)
class Function:
    """Identity of a function (DESIGN.md): kind, name, where; `stack` tells callers apart."""

    kind: str
    name: str
    file: str = ""
    line: int = 0
    detail: str = ""
    caller: str = ""
    stack: str = ""
    resource: str = "none"

    def without_stack(self) -> Function:
        """The same function whoever called it."""
        return Function(self.kind, self.name, self.file, self.line, self.detail, self.caller, "", self.resource)


def python(stack: StackName, detail: str = "") -> Function:
    """A Python function that runs, or (detail 'sleep') waits by its own will."""
    return Function("python", stack.name or "(not sampled)", stack.file, stack.line, detail, "", stack.text, "cpu")


def collector(stack: StackName) -> Function:
    """The garbage collector, with the function that it interrupted."""
    return Function("python", "gc", stack.file, stack.line, "gc", stack.name, stack.text, "cpu")


def waiting(kind: str, name: str, detail: str, stack: StackName, resource: str = "none") -> Function:
    """Something other than Python that a Python function waits in: file and line say which one."""
    return Function(kind, name, stack.file, stack.line, detail, stack.name, stack.text, resource)
