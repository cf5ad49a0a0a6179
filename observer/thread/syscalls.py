"""Name what a thread waits for, by its system call. x86-64 numbers (probes/base/system_calls.py)."""

from __future__ import annotations

from rankscope.probes.base.system_calls import known, shown
from rankscope.probes.sched.probe import GIL_WAIT

NO_SYSCALL = 0xFFFF  # blocked in none: a page fault, or the thread was preempted
GIL = GIL_WAIT  # in place of futex; the argument is the holder's thread state
SLEEP_CALLS = {35: "nanosleep", 230: "clock_nanosleep", 34: "pause"}
SELECT_CALLS = {23: "select", 270: "pselect6"}
THREAD_CALLS = {202: "futex", 449: "futex"}  # futexes: another thread of the process ends the wait
SYNC_CALLS = {
    202: "futex", 449: "futex", 7: "poll", 271: "poll", 23: "select", 270: "select", 232: "epoll", 281: "epoll", 441: "epoll",
    61: "wait child", 247: "wait child", 65: "semaphore", 220: "semaphore", 128: "signal", 130: "signal",
    0: "read", 19: "read", 1: "write", 20: "write",
}  # fmt: skip
SOCKET_CALLS = {
    42: "connect",
    43: "accept",
    288: "accept",
    44: "send",
    45: "recv",
    46: "send",
    47: "recv",
    299: "recv",
    307: "send",
}
FILE_CALLS = {
    0: "read", 17: "read", 19: "read", 295: "read", 327: "read", 1: "write", 18: "write", 20: "write", 296: "write", 328: "write",
    74: "fsync", 75: "fsync", 2: "open", 257: "open", 437: "open", 3: "close", 4: "stat", 5: "stat", 6: "stat", 262: "stat", 332: "stat",
    21: "stat", 269: "stat", 78: "list folder", 217: "list folder", 26: "sync", 162: "sync", 277: "sync", 306: "sync", 82: "rename",
    264: "rename", 316: "rename", 87: "unlink", 263: "unlink", 77: "truncate", 40: "copy", 326: "copy", 73: "file lock", 72: "file lock",
    9: "mmap", 10: "mprotect", 11: "munmap", 12: "brk", 25: "mremap", 28: "madvise", 221: "read ahead", 187: "read ahead",
}  # fmt: skip


IN_KERNEL = 1 << 63  # in place of an instruction pointer: RS_IN_KERNEL in sampler.bpf.c


def of_sample(place: int) -> str:
    """Name what the kernel did for a thread as it was sampled; '' if the thread's own code ran.

    `place`: the thread's instruction pointer, or IN_KERNEL with the number of the system call. An
    interrupt that came meanwhile looks like a page fault.
    """
    return reason(known(place & 0xFFFF), 1) if place & IN_KERNEL else ""


def reason(absence_syscall: int, argument: int) -> str:
    """Name what a thread blocked in this system call waits for, in one word or two."""
    if absence_syscall == GIL:
        return "gil"
    if absence_syscall == NO_SYSCALL:
        return "page fault"
    if absence_syscall in SELECT_CALLS and argument == 0:
        return "sleep"
    for table in (SLEEP_CALLS, SOCKET_CALLS, SYNC_CALLS, FILE_CALLS):
        if absence_syscall in table:
            return "sleep" if table is SLEEP_CALLS else table[absence_syscall]
    return f"system call {shown(absence_syscall)}"
