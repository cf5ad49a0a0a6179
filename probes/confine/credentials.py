"""Rights of a process: giving them up, and running a program without them.

Needs the standard library alone: it is also run by its path, as a program that confines itself and
then runs another one,

python -I -S credentials.py CAPABILITIES FILTER PROGRAM

with a mask of capabilities and a filter of seccomp.py, both in hex. Sources: capabilities(7),
prctl(2), seccomp(2), setresuid(2).
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
# A user id beyond those that distributions, directories, systemd and containers assign, so that
# nobody else may touch its processes.
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
    """Return the bit mask of these capabilities."""
    return sum(1 << one for one in set(capabilities))


def last_capability() -> int:
    """Read the highest capability that this kernel knows. Raises OSError, ValueError."""
    with open("/proc/sys/kernel/cap_last_cap", "rb") as file:  # noqa: PTH123 - pathlib takes as long to import as all the rest
        return int(file.read(16))


def effective() -> int:
    """Read the effective capabilities of this thread, as a mask. Raises OSError, ValueError."""
    with open("/proc/thread-self/status", "rb") as file:  # noqa: PTH123
        line = next(line for line in file if line.startswith(b"CapEff:"))
    return int(line.split()[1], 16)


def set_capabilities(usable: int, kept: int | None = None, *, passed_on: int = 0) -> None:
    """Set this thread's capabilities. Raises OSError.

    `usable`: effective ones; `kept`: permitted ones (default: the same); `passed_on`: inherited by
    programs it executes, as any user.
    """
    kept = usable if kept is None else kept
    halves = [number >> shift & 0xFFFFFFFF for shift in (0, 32) for number in (usable, kept, passed_on)]
    header = ctypes.create_string_buffer(struct.pack("<Ii", _CAPABILITY_VERSION, 0))
    data = ctypes.create_string_buffer(struct.pack("<6I", *halves))
    _check(_libc.syscall(_SYS_CAPSET[os.uname().machine], header, data))
    for one in range(passed_on.bit_length()):
        if passed_on >> one & 1:
            _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, one, 0, 0))


def close_the_bounds(kept: int) -> None:
    """Remove all capabilities but `kept` from the bounding set of this process and its children.

    Does nothing without CAP_SETPCAP. Raises OSError.
    """
    if not effective() >> _CAP_SETPCAP & 1:
        return
    for one in range(last_capability() + 1):
        if not kept >> one & 1:
            _check(_libc.prctl(_PR_CAPBSET_DROP, one, 0, 0, 0))


def become(user: int, groups: Collection[int] = ()) -> None:
    """Switch to another user for good; capabilities may still be set. Raises OSError."""
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups(list(groups))
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def no_new_rights() -> None:
    """Set no_new_privs: nothing that this process executes gains rights. Raises OSError."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def can_filter() -> bool:
    """Tell whether this kernel can filter system calls."""
    return int(_libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0)) >= 0


def filter_calls(program: bytes) -> None:
    """Install a filter of seccomp.py for this thread and what it starts. Raises OSError."""
    steps = ctypes.create_string_buffer(program, len(program))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _described(steps), 0, 0))


def filter_and_listen(program: bytes) -> int:
    """Install a filter and return the descriptor of its listener, which decides where the filter
    says so.

    Raises OSError.
    """
    steps = ctypes.create_string_buffer(program, len(program))
    number = _SYS_SECCOMP.get(os.uname().machine, -1)
    listener = int(
        _libc.syscall(number, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER, _described(steps))
    )
    _check(listener)
    return listener


def _described(steps: ctypes.Array[ctypes.c_char]) -> ctypes.Array[ctypes.c_char]:
    """Build struct sock_fprog for a filter (length and address); valid as long as `steps` exists."""
    return ctypes.create_string_buffer(struct.pack("@HP", len(steps) // _STEP_BYTES, ctypes.addressof(steps)), 16)


def die_with_parent(number: int) -> None:
    """Have the kernel send signal `number` when the thread that started this process ends.

    A switch of user resets it. Raises OSError.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0))


def hide_memory() -> None:
    """Forbid processes of the same user to read or trace this one. Raises OSError."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def no_core_dump() -> None:
    """Disable core dumps, so that data read from others does not reach a disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _check(result: int) -> None:
    """Raise OSError with errno if `result`, of a call of the C library, is negative."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def main() -> None:
    """Confine this process, then run the program given as argument."""
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
