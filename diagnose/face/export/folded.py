"""Folded stacks (flamegraph.pl, inferno, speedscope): a stack per line, frames separated by ';', microseconds."""

from __future__ import annotations

from rankscope.diagnose.face.export.stacks import rank_name, samples_of
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.observer.window.stacks import StackFrame


def folded(fleet: Fleet) -> bytes:
    """Export folded stacks; the rank is the first frame, so that one file contains all."""
    lines: dict[str, int] = {}
    for sample in samples_of(fleet):
        stack = ";".join([_name(rank_name(sample)), *map(_frame, sample.frames)])
        lines[stack] = lines.get(stack, 0) + round(sample.seconds * 1e6)
    return "".join(f"{stack} {count}\n" for stack, count in lines.items() if count).encode("utf-8")


def _frame(frame: StackFrame) -> str:
    """Format a frame as 'name (file:line)'."""
    place = f" ({frame.file.rpartition('/')[2]}:{frame.line})" if frame.file else ""
    return _name(f"{frame.name}{place}")


def _name(text: str) -> str:
    """Replace the frame separator in a name."""
    return text.replace(";", ":")
