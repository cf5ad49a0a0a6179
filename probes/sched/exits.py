"""That watched processes end, and how: EXIT events in the ring."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rankscope.probes.bpf import btf
from rankscope.probes.bpf.module import Tracepoint

SOURCE = Path(__file__).parent / "exits.bpf.c"
TRACEPOINTS = (Tracepoint("rs_exit", "sched:sched_process_exit"),)
_OFFSETS = {"RS_TASK_EXIT_CODE": ("task_struct", "exit_code")}
NUMBERS = tuple(_OFFSETS)  # that the host decides


def numbers(root: Path = Path("/")) -> dict[str, int]:
    """Where a thread's exit code lies; 0 where this kernel has no type information: then how a process ended is not reported."""
    with contextlib.suppress(btf.NoBtf):
        return dict(btf.offsets(_OFFSETS, root))
    return dict.fromkeys(_OFFSETS, 0)
