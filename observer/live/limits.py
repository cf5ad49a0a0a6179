"""Resource limits of one observation. Beyond them the window ends, or data is dropped and counted.

A window is gathered in memory: 20 s of 32 ranks are some 600,000 events of 64 bytes, which are in
memory twice briefly as it ends, while they are sorted by process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from pathlib import Path

from rankscope.probes.bpf import btf
from rankscope.probes.host.procfs import read_file
from rankscope.probes.mapped.reader import READER

EVENTS = 1_500_000
# per process: up to 640 bytes each while rows are made of them, if one thread has them all
PROCESS_EVENTS = 500_000
STACKS = 20_000  # of up to 4 KB of words each
JOBS = 256  # one window each
RANKS = 1024  # 5 ms each as a window ends; tier 0 has the same limit
# Ranks with a py-spy each, of up to half a gigabyte outside the memory limit; a host has 8 or 16
# GPUs.
SAMPLED_MOST = 16
PROCESSES = 4096  # watched in one window, including ended ones
PYTHON_THREADS = (
    # per process, the oldest: a training process has some tens; each takes up to 10 ms to read and
    # register
    256
)
MEMORY_BYTES = 512 << 20  # limit enforced by the kernel (observer/apart/memory_cap.py)
RESIDENT_BYTES = 448 << 20  # the window ends here: making its rows takes the rest
_DESCRIPTORS = 65536  # a library, a connection or a process takes one or two; the usual limit is 1,024
_DIES_FIRST = "1000"
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def set_process_limits(root: Path = Path("/")) -> None:
    """Make this process the kernel's first victim when memory runs out, and raise its descriptor
    limit. Never raises.
    """
    with contextlib.suppress(OSError):
        (root / "proc/self/oom_score_adj").write_text(_DIES_FIRST, encoding="ascii")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in ((max(soft, _DESCRIPTORS), max(hard, _DESCRIPTORS)), (max(soft, min(hard, _DESCRIPTORS)), hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, wanted)
        except (OSError, ValueError):
            continue
        return


def resident_bytes() -> int:
    """Return this process's resident memory in bytes; 0 where unknown."""
    try:
        fields = read_file("/proc/self/statm", 256).split()
        return int(fields[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def give_back(*, garbage: bool = False) -> None:
    """Return unused heap to the kernel (glibc holds 25 MB after large reads), and end the child
    that reads files.

    `garbage`: collect Python's too, and with it its lists of free tuples, to which each window adds
    6 KB. For long-lived processes, after a window: it takes some 25 ms, too much for what runs
    every half a minute.
    """
    btf.forget()
    READER.close()
    if garbage:
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
