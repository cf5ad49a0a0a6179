"""Room for what is loaded: asked for before, where addresses or data are limited (`ulimit -v`, RLIMIT_DATA).

Libraries in C that get no memory do not say so. OpenBLAS, below numpy, tries again for ever, or ends the process with 1, which is a result
here; what starts threads aborts. So a module that needs much is loaded only where so much is to be had; else it is a MemoryError.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import sys
import threading

# Addresses in MB that each takes, with what it maps as it works: measured with little to spare (82; 97, Parquet 22, a table 53).
NEEDS_MB = {"numpy": 112, "pyarrow": 208}
THREADS_HELP = "Raise the limits on memory and on processes (ulimit -v, ulimit -u, pids.max, TasksMax)."
_STACK_BYTES = 1 << 20
_M_ARENA_MAX = -8  # malloc.h


class _Asks:
    """Finds no module; there must be room for those that need much."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in NEEDS_MB and not there_is(NEEDS_MB[name] << 20):
            raise MemoryError(f"{name} needs {NEEDS_MB[name]} MB of addresses")


def limited() -> bool:
    """Whether this process may have only so many addresses, or so much data."""
    return any(
        resource.getrlimit(what)[0] != resource.RLIM_INFINITY for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    )


def there_is(wanted_bytes: int) -> bool:
    """Whether so much could be had now, in one piece. Nothing is kept, and no page is touched."""
    try:
        mmap.mmap(-1, wanted_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True


def make_do() -> None:
    """Take less: one arena for all threads (each takes 64 MB of addresses), small stacks, no reserve of a gigabyte for Arrow; and ask
    before each module that needs much. To be called before they are loaded. Never raises."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    threading.stack_size(_STACK_BYTES)
    for name, value in (("ARROW_DEFAULT_MEMORY_POOL", "system"), ("OMP_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)
    sys.meta_path.insert(0, _Asks)


def refused_a_thread(error: BaseException) -> bool:
    """Whether Python says so that the kernel or the C library has no more threads: it has no class for that."""
    return isinstance(error, RuntimeError) and "start new thread" in str(error)
