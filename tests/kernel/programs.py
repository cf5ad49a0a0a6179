"""Which BPF programs a process holds, and which of them the kernel still has. Other observers may run meanwhile."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rankscope.probes.bpf import syscalls


def programs_of(pid: int) -> set[int]:
    """Ids of the programs that a process has open."""
    found: set[int] = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            found |= {int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("prog_id:")}
    return found


def loaded(programs: set[int]) -> set[int]:
    """Those that the kernel has."""
    return programs & {info.identity for info in syscalls.loaded_programs()}


def left_after(programs: set[int], seconds: float = 20.0) -> set[int]:
    """Those that are still there after a while."""
    end = time.monotonic() + seconds
    while (left := loaded(programs)) and time.monotonic() < end:
        time.sleep(0.2)
    return left
