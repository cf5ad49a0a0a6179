"""What one observation may take of a host. Where it ends the window ends, or what does not fit is let go and counted: it says so.

A window is gathered in memory: 20 s of 32 ranks are some 600,000 events of 64 bytes, which are held twice for a moment as it ends, while
they are put in order by process.
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
PROCESS_EVENTS = 500_000  # of one: up to 640 bytes each while rows are made of them, where one thread has them all
STACKS = 20_000  # of up to 4 KB of words each
JOBS = 256  # a window each
RANKS = 1024  # 5 ms each as a window ends; of tier 0 as many
# Ranks with a py-spy each, of up to half a gigabyte outside the limit of memory; a host has 8 or 16 GPUs.
SAMPLED_BESIDE = 16
PROCESSES = 4096  # watched in one window, those that have ended with them
PYTHON_THREADS = (
    256  # of one process, the oldest: a training process has some tens; each takes up to 10 ms to read and to tell
)
MEMORY_BYTES = 512 << 20  # the kernel gives no more (observer/apart/memory_cap.py)
RESIDENT_BYTES = 448 << 20  # here a window ends: what it takes to make rows of it is still to come
_DESCRIPTORS = 65536  # a library, a connection or a process takes one or two; the usual limit is 1,024
_DIES_FIRST = "1000"
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def take_place(root: Path = Path("/")) -> None:
    """Be what the kernel kills first where memory ends, before any rank; and have room for descriptors. Never raises."""
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
    """Memory that this process has, without what it shares with the kernel's rings. 0 where nobody tells."""
    try:
        fields = read_file("/proc/self/statm", 256).split()
        return int(fields[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def give_back(*, garbage: bool = False) -> None:
    """Return to the kernel what reading large libraries and the kernel's types took for a moment (glibc keeps it: 25 MB), and end the
    process that reads files of targets.

    `garbage`: that of Python too, and with it its lists of free tuples, to which each window adds 6 KB. For who lives long, after a window:
    it takes some 25 ms, too much for what is done every half a minute.
    """
    btf.forget()
    READER.close()
    if garbage:
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
