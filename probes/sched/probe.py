"""Off-CPU time, run-queue delay, and which processes ran meanwhile.

In: a loaded module. Out: OFFCPU events in the ring for threads with Python state; totals for every
thread of a watched process; for each watched process the processes that ran while its threads were
in the run queue.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base.system_calls import known
from rankscope.probes.bpf import btf
from rankscope.probes.bpf.module import Module, Tracepoint
from rankscope.probes.bpf.programs import has_task_registers
from rankscope.probes.sched import exits

SOURCE = Path(__file__).parent / "sched.bpf.c"
TRACEPOINTS = (
    Tracepoint("rs_sched_switch", "sched:sched_switch"),
    Tracepoint("rs_sched_waking", "sched:sched_waking"),
    Tracepoint("rs_sched_exit", "sched:sched_process_exit"),
)
# How long a thread has run that was first seen running; sched.bpf.c can do without.
_OFFSETS = {
    "RS_TASK_RAN": ("task_struct", "se.sum_exec_runtime"),
    "RS_TASK_RAN_BEFORE": ("task_struct", "se.prev_sum_exec_runtime"),
}
# Whose child a process is that ends; without it, it is nobody's.
_FAMILY = {"RS_TASK_PARENT": ("task_struct", "real_parent"), "RS_TASK_TGID": ("task_struct", "tgid")}
# Position of the current thread's saved registers, if the kernel has no helper for it: at the end
# of its stack, whose size no type gives (THREAD_SIZE of x86-64; of arm64, which maps no less than a
# page for it).
_SAVED_REGISTERS = {
    "RS_TASK_STACK": ("task_struct", "stack"),
    "RS_REGISTERS_BYTES": ("pt_regs", ""),
}
_STACK_BYTES = max(16384, mmap.PAGESIZE)
# constants that the host decides
NUMBERS = (*exits.NUMBERS, *_OFFSETS, *_FAMILY, *_SAVED_REGISTERS, "RS_STACK_BYTES")

# prev_state bits of sched_switch (include/linux/sched.h); 0 is runnable: it was preempted.
UNINTERRUPTIBLE, STOPPED, TRACED, IDLE = 0x2, 0x4, 0x8, 0x80
# Layout of an OFFCPU event's `aux`: the state below this bit; above it the tid of the waker, 0
# where nobody woke the thread (22 bits at most).
WAKER_SHIFT = 8
_FREELY, _EACH = 1, 2  # RS_THREADS_FREELY, RS_THREADS_EACH in sched.bpf.c
# RS_GIL in sched.bpf.c, in place of the system call: a wait for the GIL; the argument is the
# holder's thread state.
GIL_WAIT = 0xFFFE


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Time of one thread by state since it first left a CPU. `out_since_ns` 0: running."""

    tid: int
    tgid: int
    run_s: float
    ready_s: float
    blocked_s: float
    stopped_s: float
    switches: int
    out_since_ns: int
    wake_ns: int
    state: int
    syscall: int
    argument: int
    stack: int


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """Run time and run-queue time of the threads of one process since they were first seen."""

    run_s: float
    ready_s: float


@dataclass(frozen=True, slots=True)
class Taken:
    """Time that the process `taker` ran while threads of the process `pid` were in that CPU's run
    queue, summed over these.
    """

    pid: int
    taker: int
    comm: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EndedChild:
    """A process that ended before it was watched: its parent, when its first thread ended (by the
    clock, whole seconds; CLOCK_MONOTONIC), how long its ended threads ran.
    """

    parent: int
    since_s: int
    run_s: float


def numbers(root: Path = Path("/")) -> dict[str, int]:
    """Return the constants of sched.bpf.c for this kernel, by name: member offsets and sizes in bytes.

    0 for those unknown without type information (BTF), and for those that locate saved registers where the
    kernel has a helper for that. Raises NoBtf where it has neither, OSError where it loads no program.
    """
    found = {**dict.fromkeys(NUMBERS, 0), **exits.numbers(root)}
    with contextlib.suppress(btf.NoBtf):
        found.update(btf.offsets({**_OFFSETS, **_FAMILY}, root))
    if not has_task_registers():
        found.update(btf.offsets(_SAVED_REGISTERS, root), RS_STACK_BYTES=_STACK_BYTES)
    return found


def share_threads(module: Module) -> None:
    """Reserve half of the kernel's thread map for equal shares of the processes; the other half is
    for anybody.
    """
    table = module.maps["rs_thread_room"]
    freely = module.maps["rs_threads"].shape.max_entries // 2
    table[ctypes.c_int(_FREELY)] = ctypes.c_int64(freely)
    table[ctypes.c_int(_EACH)] = ctypes.c_int64(max(freely // module.maps["rs_targets"].shape.max_entries, 1))


def look_again(module: Module) -> None:
    """Invalidate what our programs in the kernel cache about threads.

    Call it after a change of watched processes or of threads with Python state.
    """
    table = module.maps["rs_generation"]
    now = int(table[ctypes.c_int(0)].value)
    table[ctypes.c_int(0)] = ctypes.c_uint32(now + 1)


def thread_times(module: Module) -> tuple[ThreadTimes, ...]:
    """Read run, run-queue, blocked and stopped seconds of every watched thread, and its present state.

    The totals count from when each thread first left a CPU.
    """
    return tuple(
        ThreadTimes(
            int(tid.value), int(row.tgid), row.run_ns / 1e9, row.ready_ns / 1e9, row.blocked_ns / 1e9, row.stopped_ns / 1e9,
            int(row.switches), int(row.out_ns), int(row.wake_ns), int(row.state), known(int(row.syscall)), int(row.arg), int(row.stack),
        )
        for tid, row in module.maps["rs_threads"].items()
    )  # fmt: skip


def process_times(module: Module) -> dict[int, ProcessTimes]:
    """Return the totals of every watched process by pid, including its ended threads."""
    found = {
        int(tgid.value): ProcessTimes(row.run_ns / 1e9, row.ready_ns / 1e9)
        for tgid, row in module.maps["rs_ended"].items()
    }
    for thread in thread_times(module):
        ended = found.get(thread.tgid, ProcessTimes(0.0, 0.0))
        found[thread.tgid] = ProcessTimes(ended.run_s + thread.run_s, ended.ready_s + thread.ready_s)
    return found


def ended_children(module: Module) -> dict[int, EndedChild]:
    """Read, by pid, children of watched processes that were not watched themselves and have ended threads.

    Most have ended altogether: loader workers that lived too shortly to be watched.
    """
    return {
        int(child.value): EndedChild(int(row.parent), int(row.since_s), row.ran_ns / 1e9)
        for child, row in module.maps["rs_children"].items()
    }


def takers_forgotten(module: Module, made: int) -> int:
    """Return how many pairs at least the kernel's full map of takers has evicted, 0 where it is not full.

    `made`: number of pairs added to it (the counter taker_new).
    """
    return max(made - module.maps["rs_takers"].shape.max_entries, 0) if made else 0


def takers(module: Module) -> dict[tuple[int, int], Taken]:
    """Read `Taken` of each pair of processes. Key: (pid << 32 | taker's pid, time first seen in ns).

    A pair that was evicted and came back starts anew, with another time.
    """
    return {
        (int(key.tgid) << 32 | int(key.taker), int(row.since_ns)): Taken(
            int(key.tgid), int(key.taker), bytes(row.comm).split(b"\0")[0].decode("ascii", "replace"), row.ns / 1e9
        )
        for key, row in module.maps["rs_takers"].items()
    }
