"""How long something hangs, from entries of earlier sweeps: a half-second look cannot tell long from endless.

Entries contain the boot id and a start in seconds that the host was awake since boot (the clock may be set, and time
suspended is no hang). A task that ran in between, however shortly, hangs from now on, as its context switches show.
"""

from __future__ import annotations

import re
import time

from rankscope.diagnose.sweep.context import Context
from rankscope.probes.host.procfs import ROOT, proc_path, read_file


def awake_s(context: Context) -> float:
    """Seconds since boot without suspension.

    /proc/uptime includes it, the kernel's log does not.
    """
    return time.monotonic() if context.root == ROOT else context.uptime_s


def since(context: Context, lasting_s: float) -> str:
    """Encode as text for storing: this boot, and a start `lasting_s` seconds ago."""
    return f"{context.boot or '-'} {awake_s(context) - lasting_s:.2f}"


def lasting_s(context: Context, word: str | None) -> float | None:
    """Seconds since the start in an entry that `since` encoded.

    None if there is none, or it is from another boot.
    """
    boot, _, began = (word or "").rpartition(" ")
    try:
        seconds = awake_s(context) - float(began)
    except ValueError:
        return None
    return max(seconds, 0.0) if boot == (context.boot or "-") else None


def hangs_for_s(context: Context, key: str) -> float | None:
    """Seconds since `key` was first reported hanging, in unbroken sweeps; None the first time. Stores the start."""
    seconds = lasting_s(context, context.recall(key))
    context.keep(key, since(context, seconds or 0.0))
    return seconds


def still_for_s(context: Context, key: str, switches: str) -> float | None:
    """Seconds since a task last ran; None if no earlier sweep saw these context switches.

    Stores the start.
    """
    ran, _, began = (context.recall(key) or "").partition(" ")
    seconds = lasting_s(context, began) if ran == switches else None
    context.keep(key, f"{switches} {since(context, seconds or 0.0)}")
    return seconds


def switches_in(status: bytes) -> str:
    """Numbers of context switches in /proc/PID/status (or a thread's), as one text."""
    lines = (line for line in status.split(b"\n") if b"ctxt_switches" in line)
    return b".".join(re.findall(rb"\d+", b"".join(lines))).decode()


def switches_of(context: Context, pid: int, tid: int) -> str:
    """Numbers of context switches of a thread, as one text. Raises OSError."""
    parts = (pid,) if tid == pid else (pid, "task", tid)
    return switches_in(read_file(proc_path(context.root, *parts, "status"), 65536))
