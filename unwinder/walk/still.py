"""Read the Python stack of a thread that does not run, from user space.

A thread that waits through the whole window never leaves the CPU where the kernel probe could take
its stack. Its frames do not change, so they can be walked through /proc/PID/mem; should it run
after all, the walk may end early or mix two stacks, and reports `moved`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.unwinder.errors import UnreadableMemory
from rankscope.unwinder.interpreter.find import Interpreter
from rankscope.unwinder.interpreter.memory import Memory, read_i32, read_u8, read_u64
from rankscope.unwinder.interpreter.offsets import ABSENT, LastInstruction
from rankscope.unwinder.walk.stack import RawFrame

FRAMES_CAP = 512
_CODE_UNIT_BYTES = 2


@dataclass(frozen=True, slots=True)
class BlockedStack:
    """A stack of frames, innermost first; `moved`: the thread ran meanwhile, so they may not belong together."""

    frames: tuple[RawFrame, ...]
    moved: bool


def walk_blocked(memory: Memory, interpreter: Interpreter, tstate: int) -> BlockedStack:
    """Walk the frames of the thread whose PyThreadState is at address `tstate`, innermost first.

    `moved` is set where the innermost frame is another one after the walk: the thread ran, and its frames may be
    mixed. An unreadable frame ends the walk; an unreadable thread state (before or after the walk) gives no
    frames, and `moved`. Raises TargetGone.
    """
    try:
        first = _top(memory, interpreter, tstate)
        frames = _walk(memory, interpreter, first)
        return BlockedStack(frames, moved=_top(memory, interpreter, tstate) != first)
    except UnreadableMemory:
        return BlockedStack((), moved=True)


def _top(memory: Memory, interpreter: Interpreter, tstate: int) -> int:
    """Return the address of the innermost frame of a thread state; 0 where it has none.

    Raises UnreadableMemory, TargetGone.
    """
    offsets = interpreter.offsets
    top = read_u64(memory, tstate + offsets.tstate_frame)
    if top and offsets.cframe_frame != ABSENT:
        top = read_u64(memory, top + offsets.cframe_frame)
    return top


def _walk(memory: Memory, interpreter: Interpreter, frame: int) -> tuple[RawFrame, ...]:
    """Read the frames from address `frame` outwards, innermost first, FRAMES_CAP at most.

    Frames that run no Python code are left out; unreadable memory ends the walk. Raises TargetGone.
    """
    offsets, seen = interpreter.offsets, set[int]()
    frames: list[RawFrame] = []
    while frame and frame not in seen and len(frames) < FRAMES_CAP:
        seen.add(frame)
        try:
            code = read_u64(memory, frame + offsets.frame_code) & ~offsets.tag_bits
            shim = offsets.frame_owner != ABSENT and (
                read_u8(memory, frame + offsets.frame_owner) >= offsets.first_shim_owner
            )
            if code and code != interpreter.none_address and not shim:
                frames.append(RawFrame(code, _lasti(memory, interpreter, frame, code)))
            frame = read_u64(memory, frame + offsets.frame_previous)
        except UnreadableMemory:
            break
    return tuple(frames)


def _lasti(memory: Memory, interpreter: Interpreter, frame: int, code: int) -> int:
    """Return the index of the code unit that a frame executes; -1 where it makes no sense or has not begun.

    `frame`, `code`: addresses of the frame and its code object. Raises UnreadableMemory, TargetGone.
    """
    offsets = interpreter.offsets
    if offsets.last_instruction is LastInstruction.POINTER:
        distance = read_u64(memory, frame + offsets.frame_last) - code - offsets.code_bytecode
        return distance // _CODE_UNIT_BYTES if 0 <= distance < 1 << 26 else -1
    counted = read_i32(memory, frame + offsets.frame_last)
    return counted // _CODE_UNIT_BYTES if offsets.last_instruction is LastInstruction.BYTES else counted
