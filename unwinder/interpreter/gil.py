"""Give the kernel the address of a process's GIL, so that GIL waits differ from other lock waits.

A thread waits for the GIL in `futex` on the lock's own mutex or condition variable, inside `struct
_gil_runtime_state` (within _PyRuntime up to 3.11, at interp->ceval.gil from 3.12). The second word
of that structure is the thread state that took the GIL last: while others wait, its holder.
"""

from __future__ import annotations

import ctypes
from typing import Any

from rankscope.unwinder.interpreter.find import Interpreter

LAST_HOLDER = 8
"""Offset of last_holder in the GIL's structure, 3.8-3.15, after `unsigned long interval`."""


def register_gil(maps: Any, interpreter: Interpreter) -> None:
    """Write a process's GIL (address, size) into the BPF map `rs_gils`, by pid; do nothing if unknown.

    Read in probes/sched/sched.bpf.c.
    """
    if interpreter.gil_address and interpreter.gil_bytes:
        table = maps["rs_gils"]
        table[ctypes.c_uint32(interpreter.pid)] = table.Leaf(
            interpreter.gil_address, interpreter.gil_bytes, LAST_HOLDER
        )
