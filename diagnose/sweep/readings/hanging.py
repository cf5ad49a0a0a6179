"""How long something hangs, by what earlier sweeps kept: a look of half a second says nothing, for much takes long that ends.

In: the words of earlier sweeps, which tell since when by the time that the host was awake since boot (its clock may be set, and what sleeps
hangs in nothing), and of which boot. A task that has run
in between, however shortly, hangs from now on: its context switches say so.
"""

from __future__ import annotations

import re
import time

from rankscope.diagnose.sweep.context import Context
from rankscope.probes.host.procfs import ROOT, proc_path, read_file


def awake_s(context: Context) -> float:
    """Seconds since boot without those that the host was suspended, which /proc/uptime counts and the kernel's log does not."""
    return time.monotonic() if context.root == ROOT else context.uptime_s


def since(context: Context, lasting_s: float) -> str:
    """That something has lasted for so long, to be kept."""
    return f"{context.boot or '-'} {awake_s(context) - lasting_s:.2f}"


def lasting_s(context: Context, word: str | None) -> float | None:
    """For how long it has, by what was kept; None where it began in this sweep, or in another boot."""
    boot, _, began = (word or "").rpartition(" ")
    try:
        seconds = awake_s(context) - float(began)
    except ValueError:
        return None
    return max(seconds, 0.0) if boot == (context.boot or "-") else None


def hangs_for_s(context: Context, key: str) -> float | None:
    """For how long something of this name does, which is kept; None where it began in this sweep."""
    seconds = lasting_s(context, context.recall(key))
    context.keep(key, since(context, seconds or 0.0))
    return seconds


def still_for_s(context: Context, key: str, switches: str) -> float | None:
    """For how long a task has not run, which is kept; None where no earlier sweep saw it stand at these context switches."""
    ran, _, began = (context.recall(key) or "").partition(" ")
    seconds = lasting_s(context, began) if ran == switches else None
    context.keep(key, f"{switches} {since(context, seconds or 0.0)}")
    return seconds


def switches_in(status: bytes) -> str:
    """Context switches of /proc/PID/status, or of that of a thread."""
    lines = (line for line in status.split(b"\n") if b"ctxt_switches" in line)
    return b".".join(re.findall(rb"\d+", b"".join(lines))).decode()


def switches_of(context: Context, pid: int, tid: int) -> str:
    """Of one thread; of the first one /proc/PID/status says the same. Raises OSError."""
    parts = (pid,) if tid == pid else (pid, "task", tid)
    return switches_in(read_file(proc_path(context.root, *parts, "status"), 65536))
