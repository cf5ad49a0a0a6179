"""Report the end of watched processes, with their exit codes: EXIT events in the ring."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rankscope.probes.bpf import btf
from rankscope.probes.bpf.module import Tracepoint

SOURCE = Path(__file__).parent / "exits.bpf.c"
TRACEPOINTS = (Tracepoint("rs_exit", "sched:sched_process_exit"),)
_OFFSETS = {"RS_TASK_EXIT_CODE": ("task_struct", "exit_code")}
NUMBERS = tuple(_OFFSETS)  # constants that the host decides


def numbers(root: Path = Path("/")) -> dict[str, int]:
    """Return the byte offset of task_struct.exit_code, by the constant's name in the C; 0 without type information.

    In that case it is not reported how a process ended.
    """
    with contextlib.suppress(btf.NoBtf):
        return dict(btf.offsets(_OFFSETS, root))
    return dict.fromkeys(_OFFSETS, 0)
