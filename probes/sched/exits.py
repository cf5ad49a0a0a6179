"""That watched processes end, and how: EXIT events in the ring."""

from __future__ import annotations

from pathlib import Path

from rankscope.probes.bpf.module import Tracepoint

SOURCE = Path(__file__).parent / "exits.bpf.c"
TRACEPOINTS = (Tracepoint("rs_exit", "sched:sched_process_exit"),)
