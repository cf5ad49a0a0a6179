"""That watched processes end, and how: EXIT events in the ring."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rankscope.probes.bpf import btf
from rankscope.probes.bpf.module import Tracepoint

SOURCE = Path(__file__).parent / "exits.bpf.c"
TRACEPOINTS = (Tracepoint("rs_exit", "sched:sched_process_exit"),)


def defines(root: Path = Path("/")) -> dict[str, int]:
    """Where a thread's exit code lies, as a -D constant; nothing where this kernel has no type information: then how a process ended is
    not told."""
    with contextlib.suppress(btf.NoBtf):
        return dict(btf.offsets({"RS_TASK_EXIT_CODE": ("task_struct", "exit_code")}, root))
    return {}
