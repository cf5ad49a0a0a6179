"""The kind of activity that a row of the pattern table belongs to.

Of several that fit, the first counts:

cpu-queue, stopped    ready but not running, or stopped: whatever the thread was about to do
gc                    the garbage collector, whatever it interrupted, but for a compiler, whose
                      garbage it collects
collectives           inside a collective; split into waiting and exchange by the peers (split.py)
gpu                   kernels, copies, waits for the own GPU
compiling             a compiler's function on the stack
input                 a data loader's function on the stack: waits for workers, and loading in the
                      training process itself
memory                blocked for a page, or for the change of a mapping
files                 file calls
locks                 waits for threads and processes: the GIL, locks, pipes, sockets
asleep                asleep by its own will
system                running, in the kernel: its share of the samples (kernel.py), or, in older windows, if
                      most of them were
python                running, in a function of the user's and no library's native code
libraries             running in any other code
own-work              a function of which a file of timings says no more than that it is the rank's

What runs only in a few steps becomes `pauses` later (pauses.py), unless it has one of the first
kinds.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.infer.budget.frames import Frames, StackFacts
from rankscope.diagnose.infer.fleet.model import Patterns
from rankscope.diagnose.infer.model.evidence.known_code import INTERPRETER, OF_MEMORY
from rankscope.diagnose.infer.model.waits import TRANSFER
from rankscope.diagnose.infer.verdict.budget import Kind

# Kinds that stay what they are in a pause.
FIRM = frozenset(
    {
        Kind.QUEUE,
        Kind.STOPPED,
        Kind.GC,
        Kind.COLLECTIVES,
        Kind.EXCHANGE,
        Kind.GPU,
        Kind.GENERATION,
        Kind.SERVERS,
        Kind.COMPILING,
        Kind.INPUT,
        Kind.MEMORY,
    }
)
NOT_SAMPLED = "(not sampled)"  # running in a function that was not seen (observer/thread/functions.py)


def kind_of(table: Patterns, row: int, frames: Frames) -> Kind:
    """Return the kind of activity of a row of the pattern table (of a training thread); UNKNOWN if none fits."""
    kind, detail, facts = table.kind.at(row), table.detail.at(row), frames.of(row)
    found = _firm_kind(table.name.at(row), kind, detail)
    if found is not None and not (found is Kind.GC and facts.compiles):
        return found
    if facts.compiles:
        return Kind.COMPILING
    if facts.loads:
        return Kind.INPUT
    if kind == "io":
        return Kind.MEMORY if table.name.at(row) in OF_MEMORY else Kind.FILES
    if kind == "sync":
        return Kind.LOCKS
    if kind != "python":
        return Kind.UNKNOWN  # a forged window may contain anything
    return Kind.ASLEEP if detail == "sleep" else _of_running(table, row, facts)


def _firm_kind(name: str, kind: str, detail: str) -> Kind | None:
    """Return the kind if it is queueing, stopped, GC, a collective or the GPU, which no stack changes; else None."""
    if kind == "sched":
        return Kind.STOPPED if name == "stopped" else Kind.QUEUE
    if kind == "python" and detail == "gc":
        return Kind.GC
    if kind == "collective":
        return Kind.EXCHANGE if detail == TRANSFER else Kind.COLLECTIVES
    if kind in ("gpu", "memory") or (kind, name) == ("sync", "gpu"):
        return Kind.GPU
    return None


def _of_running(table: Patterns, row: int, facts: StackFacts) -> Kind:
    """Return the kind of a running row: SYSTEM, LIBRARIES or PYTHON; OWN if only its name is known."""
    native = table.native.at(row) if table.native is not None else ""
    if native == "kernel" and (table.kernel_share is None or not np.isfinite(table.kernel_share[row])):
        return Kind.SYSTEM
    if native not in ("", "kernel") and not INTERPRETER.search(native):
        return Kind.LIBRARIES
    if table.file.at(row) or int(table.stack.codes[row]) >= 0:
        return Kind.PYTHON if facts.is_users else Kind.LIBRARIES
    return Kind.PYTHON if table.name.at(row) == NOT_SAMPLED else Kind.OWN
