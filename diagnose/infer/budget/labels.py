"""Names for the items of a kind: the user's function, and words on the activity."""

from __future__ import annotations

from rankscope.diagnose.infer.budget.frames import Frames
from rankscope.diagnose.infer.fleet.model import Patterns
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.observer.window.schema import BY_LAUNCHES
from rankscope.observer.window.stacks import StackFrame

Label = tuple[str, Function | None]  # words, '' for none; the function

NOTHING: Label = ("", None)
QUOTA: Label = ("held back by a CPU quota", None)
_WAITS = {"futex": "a lock or thread", "gil": "the GIL", "wait child": "a child process"}


def label_of(table: Patterns, row: int, kind: Kind, frames: Frames) -> Label:
    """Return the label of a row: words by its kind, and the user's lowest function on its stack, else its own.

    Collectives and the GPU have words only; queueing, stops and unknown rows have neither, but a quota is named.
    """
    facts = frames.of(row)
    function = _function(facts.user or frames.leaf(row))
    if function is None and table.kind.at(row) == "python" and table.name.at(row):
        function = Function("python", table.name.at(row), "", 0)
    if kind in (Kind.WAITING, Kind.EXCHANGE, Kind.COLLECTIVES):
        return table.name.at(row), None
    if kind is Kind.GPU:
        return _on_gpu(table, row), None
    if kind is Kind.QUEUE and table.detail.at(row) == "throttled":
        return QUOTA
    if kind in (Kind.QUEUE, Kind.STOPPED, Kind.UNKNOWN):
        return NOTHING
    return _words(table, row, kind, frames), function


def placed(table: Patterns, row: int, frames: Frames) -> Label:
    """Label a GPU function: its kernel, and the user's lowest function that launches it.

    The words say so if its seconds are estimated by launches, and name the thread without a user's function.
    """
    function = _function(frames.of(row).user or frames.leaf(row))
    thread = table.caller.at(row) if function is None else ""
    words = f"{table.name.at(row)} of {thread}" if thread else table.name.at(row)
    return (f"{words} ({BY_LAUNCHES})" if table.detail.at(row) == BY_LAUNCHES else words), function


def _function(frame: StackFrame | None) -> Function | None:
    """Convert a frame to a Python function of the verdict; None for None."""
    return None if frame is None else Function("python", frame.name, frame.file, frame.line)


def _words(table: Patterns, row: int, kind: Kind, frames: Frames) -> str:
    """Describe what a function does there; '' if its name says it."""
    name, detail = table.name.at(row), table.detail.at(row)
    if kind is Kind.INPUT:
        return "waits for loader workers" if table.kind.at(row) == "sync" else "loads in the training process"
    if kind is Kind.LOCKS:
        return f"{_WAITS.get(name, name)}, {detail}" if detail else _WAITS.get(name, name)
    if kind is Kind.FILES:
        return f"{name} {detail}".strip()
    if kind is Kind.MEMORY:
        return name
    if kind in (Kind.LIBRARIES, Kind.SYSTEM):
        leaf, user = frames.leaf(row), frames.of(row).user
        return leaf.name if leaf is not None and leaf != user else ""
    return ""


def _on_gpu(table: Patterns, row: int) -> str:
    """Return the words on a row of kind GPU: copies, waits for the GPU, or the kernel's name."""
    kind, name = table.kind.at(row), table.name.at(row)
    if kind == "memory":
        return f"copies {name}"
    return "waits for the GPU" if kind == "sync" else name
