"""Check that memory is available before loading large modules under limits (`ulimit -v`, RLIMIT_DATA).

C libraries that get no memory do not report it. OpenBLAS, below numpy, retries for ever, or ends
the process with 1, which is a result here; code that starts threads aborts. So a large module is
loaded only where enough is available; else MemoryError is raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import sys
import threading

# MB of address space that each takes, including what it maps later: measured with a small margin (82;
# 97, Parquet 22, a table 53).
NEEDS_MB = {"numpy": 112, "pyarrow": 208}
THREADS_HELP = "Raise the limits on memory and on processes (ulimit -v, ulimit -u, pids.max, TasksMax)."
_STACK_BYTES = 1 << 20
_M_ARENA_MAX = -8  # malloc.h


class _Asks:
    """An import hook that finds no module, but raises MemoryError where a large one would not fit."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise MemoryError if `name` is a large module that would not fit; else leave it to the next finder."""
        if name in NEEDS_MB and not there_is(NEEDS_MB[name] << 20):
            raise MemoryError(f"{name} needs {NEEDS_MB[name]} MB of address space")


def limited() -> bool:
    """Tell whether this process has a limit on addresses or data."""
    return any(
        resource.getrlimit(what)[0] != resource.RLIM_INFINITY for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    )


def there_is(wanted_bytes: int) -> bool:
    """Tell whether `wanted_bytes` could be mapped now, in one piece. Nothing stays mapped, and no
    page is touched.
    """
    try:
        mmap.mmap(-1, wanted_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True


def save_addresses() -> None:
    """Reduce address usage, and check before each large import. Call before importing them. Never
    raises.

    One arena for all threads (each takes 64 MB of address space), small stacks, no gigabyte reserve for
    Arrow.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    threading.stack_size(_STACK_BYTES)
    for name, value in (("ARROW_DEFAULT_MEMORY_POOL", "system"), ("OMP_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)
    sys.meta_path.insert(0, _Asks)


def refused_a_thread(error: BaseException) -> bool:
    """Tell whether an error means that the kernel or C library has no more threads; Python has no
    class for it.
    """
    return isinstance(error, RuntimeError) and "start new thread" in str(error)
