"""Clean up the kernel's maps of calls in progress: remove calls that never return, and correct their counts.

A thread that is killed in a call, or jumps out of it, leaves its entry in the map of calls.bpf.c,
and the count per process includes it.
"""

from __future__ import annotations

import contextlib
import platform
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.probes.host import procfs

_CODE = (1 << 48) - 1  # RS_CODE in calls.bpf.c
_STACK_MOST_BYTES = 1 << 18  # bytes of one stack that are searched


@dataclass(frozen=True, slots=True)
class Call:
    """A call in progress according to the kernel's map: process, thread, row of the call table."""

    tgid: int
    tid: int
    row: int


def take_out(maps: Mapping[str, Any], is_over: Callable[[Call], bool]) -> int:
    """Remove calls for which `is_over` holds, and correct the counts per process; return how many
    were removed.

    Calls go on meanwhile: a count may be off by those few until the next time. Raises OSError.
    """
    calls, numbers = maps["rs_calls"], maps["rs_calls_open"]
    left, taken = Counter[int](), 0
    for key, entry in calls.items():
        call = Call(int(entry.tgid), int(key.tid), int(entry.row))
        if not is_over(call):
            left[call.tgid] += 1
            continue
        with contextlib.suppress(KeyError):
            del calls[key]
            taken += 1
    for key, number in numbers.items():
        mine = left[int(key.value)]
        if not mine:  # the next call creates it again: only processes in a call have one
            with contextlib.suppress(KeyError):
                del numbers[key]
        elif int(number.value) != mine:
            numbers[key] = type(number)(mine)
    return taken


def take_out_ended(maps: Mapping[str, Any], root: Path = Path("/")) -> int:
    """Remove calls of processes that are not watched and of threads that ended; return how many.

    Raises OSError.
    """
    watched = _watched(maps)
    return take_out(maps, lambda call: call.tgid not in watched or not _is_there(root, call))


def take_out_unwatched(maps: Mapping[str, Any]) -> int:
    """Remove calls of processes that are not watched; return how many. Raises OSError.

    The kernel drops a process from the watched ones as it ends.
    """
    watched = _watched(maps)
    return take_out(maps, lambda call: call.tgid not in watched)


def _watched(maps: Mapping[str, Any]) -> set[int]:
    """Return the pids of the watched processes, from the kernel's map."""
    return {int(key.value) for key in maps["rs_targets"].keys()}  # noqa: SIM118  a table in the kernel is no dict


def _is_there(root: Path, call: Call) -> bool:
    """Tell whether the thread of a call still exists."""
    try:
        Path(procfs.proc_path(root, call.tgid, "task", call.tid)).stat()
    except OSError:
        return False
    return True


def ended_by_exception(tid: int, stack: int, caller: int, root: Path = Path("/")) -> bool:
    """Tell whether a call ended without returning: its return address is no longer on the thread's stack.

    `stack`: the stack pointer when the function was entered; `caller`: its return address. x86-64 has the
    latter where `stack` points; on aarch64 the function itself saves it, somewhere below. False where it
    cannot be read.
    """
    try:
        if platform.machine() != "aarch64":
            return procfs.read_memory(tid, 8, stack, root) != caller.to_bytes(8, "little")
        top = _stack_pointer(tid, root)
        if stack - top > _STACK_MOST_BYTES:
            return False
        below = procfs.read_memory(tid, max(stack - top, 0) & -8, top, root)
        return not (np.frombuffer(below[: len(below) & -8], "<u8") & _CODE == caller).any()
    except (OSError, OverflowError, ValueError, IndexError):
        return False


def _stack_pointer(tid: int, root: Path) -> int:
    """Read the stack pointer of a thread that does not run. Raises OSError, ValueError, IndexError."""
    words = procfs.read_file(procfs.proc_path(root, tid, "syscall"), 256).split()
    return int(words[-2], 16)
