"""Rights of a process: giving them up, and a program that runs without.

Needs the standard library alone: it is also run by its path, as a program that confines itself and then goes on as another one,

  python -I -S credentials.py CAPABILITIES FILTER PROGRAM

with a mask of capabilities and a filter of seccomp.py, both in hex. Sources: capabilities(7), prctl(2), seccomp(2), setresuid(2).
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Collection

# include/uapi/linux/capability.h
CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_BPF, CAP_CHECKPOINT_RESTORE = 2, 19, 21, 39, 40
_CAP_SETPCAP = 8
# Beyond what distributions, directories, systemd and containers give to anybody, so that nobody else may touch its processes.
NOBODYS_USER = 4_000_000_007
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_GET_SECCOMP, _PR_SET_SECCOMP = 1, 4, 8, 21, 22
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 24, 38, 47, 2
_SECCOMP_MODE_FILTER = 2
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
_CAPABILITY_VERSION = 0x20080522
_STEP_BYTES = 8  # of a filter
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}

_libc = ctypes.CDLL(None, use_errno=True)


def mask(capabilities: Collection[int]) -> int:
    """A bit for each."""
    return sum(1 << one for one in set(capabilities))


def last_capability() -> int:
    """The highest that this kernel knows. OSError, ValueError."""
    with open("/proc/sys/kernel/cap_last_cap", "rb") as file:  # noqa: PTH123 - pathlib takes as long to import as all the rest
        return int(file.read(16))


def effective() -> int:
    """The capabilities of this thread, as a mask. OSError, ValueError."""
    with open("/proc/thread-self/status", "rb") as file:  # noqa: PTH123
        line = next(line for line in file if line.startswith(b"CapEff:"))
    return int(line.split()[1], 16)


def set_capabilities(usable: int, kept: int | None = None, *, passed_on: int = 0) -> None:
    """Of this thread: those in use, those that it may take into use again (by default none else), and those that a program that it
    becomes has too, whoever's it is. OSError."""
    kept = usable if kept is None else kept
    halves = [number >> shift & 0xFFFFFFFF for shift in (0, 32) for number in (usable, kept, passed_on)]
    header = ctypes.create_string_buffer(struct.pack("<Ii", _CAPABILITY_VERSION, 0))
    data = ctypes.create_string_buffer(struct.pack("<6I", *halves))
    _check(_libc.syscall(_SYS_CAPSET[os.uname().machine], header, data))
    for one in range(passed_on.bit_length()):
        if passed_on >> one & 1:
            _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, one, 0, 0))


def close_the_bounds(kept: int) -> None:
    """No program that this process starts can have others than `kept`. Without CAP_SETPCAP the bounds stay. OSError."""
    if not effective() >> _CAP_SETPCAP & 1:
        return
    for one in range(last_capability() + 1):
        if not kept >> one & 1:
            _check(_libc.prctl(_PR_CAPBSET_DROP, one, 0, 0, 0))


def become(user: int, groups: Collection[int] = ()) -> None:
    """Another user, for ever; capabilities may still be set. OSError."""
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups(list(groups))
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def no_new_rights() -> None:
    """Nothing that this process starts gets more rights than it has. OSError."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def can_filter() -> bool:
    """Whether this kernel filters system calls."""
    return int(_libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0)) >= 0


def filter_calls(program: bytes) -> None:
    """Install a filter of seccomp.py for this thread and what it starts. OSError."""
    steps = ctypes.create_string_buffer(program, len(program))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _described(steps), 0, 0))


def filter_and_listen(program: bytes) -> int:
    """The same; the descriptor at which whoever has it is asked, where the filter says so. OSError."""
    steps = ctypes.create_string_buffer(program, len(program))
    number = _SYS_SECCOMP.get(os.uname().machine, -1)
    listener = int(
        _libc.syscall(number, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER, _described(steps))
    )
    _check(listener)
    return listener


def _described(steps: ctypes.Array[ctypes.c_char]) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("@HP", len(steps) // _STEP_BYTES, ctypes.addressof(steps)), 16)


def die_with_parent(number: int) -> None:
    """The kernel sends this signal when the thread that started this process ends. A change of user takes it back. OSError."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0))


def hide_memory() -> None:
    """Processes of the same user can neither look into this one nor steer it. OSError."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def no_core_dump() -> None:
    """What was read of others does not end on a disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _check(result: int) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def main() -> None:
    """Confine this process, and be the program that is named."""
    capabilities, calls, program = int(sys.argv[1], 16), bytes.fromhex(sys.argv[2]), sys.argv[3]
    with open(program, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), program, "exec")
    no_core_dump()
    if os.geteuid() == 0:
        held = capabilities & effective()
        close_the_bounds(held)
        set_capabilities(held)
    no_new_rights()
    if calls:
        filter_calls(calls)
    exec(code, {"__name__": "__main__", "__file__": program})


if __name__ == "__main__":
    main()
