"""Build a system call filter for a process that reads others' data: it may change nothing outside itself.

The filter lists what is allowed (calls.py). All else is refused with EPERM; calls newer than that
list, with ENOSYS, so that C libraries use the older call, whose arguments can be checked. Thereby
refused: starting a program or a process, touching other processes, locking or changing files,
becoming another user, entering namespaces, creating a socket, loading anything into the kernel, and
calls unknown when the list was written.

Out: a classic BPF program for seccomp(2). Sources: include/uapi/linux/{seccomp,filter,audit}.h.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rankscope.probes.confine import calls

_CLONE_THREAD = 0x10000
# CLONE_NEWTIME, _PTRACE, _NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET
_CLONE_REFUSED = 0x80 | 0x2000 | 0x20000 | 0x7E000000
_O_WRONLY, _O_RDWR, _O_CREAT, _O_TRUNC, _O_TMPFILE = 0o1, 0o2, 0o100, 0o1000, 0o20000000

# BPF_LD|W|ABS, BPF_ALU|AND|K, BPF_JMP|JEQ|K, |JGE|K, |JSET|K, BPF_RET|K
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_KILL, _ERROR, _ASK, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_REFUSE, _ABSENT = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data, little-endian
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of calls.py, AUDIT_ARCH
_X32 = 0x40000000  # x86-64 with 32-bit pointers: the same calls under other numbers


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction of a classic BPF program. `if_true`, `if_false`: how many instructions a jump skips."""

    operation: int
    value: int
    if_true: int = 0
    if_false: int = 0

    def pack(self) -> bytes:
        """Encode as struct sock_filter."""
        return struct.pack("<HBBI", self.operation, self.if_true, self.if_false, self.value)


def program(*, writing: bool, asking: bool = False, listening: bool = False, machine: str | None = None) -> bytes:
    """Build the filter for `machine` (default: this one).

    `writing`: allow opening existing files and devices to read and write, as GPU libraries do.
    `asking`: without `writing`, let a listener decide on such opens (opener.py). `listening`: the
    filter is for that listener itself. ValueError for a machine whose calls are not known here.
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        raise ValueError(f"system calls of {machine or platform.machine()} are not known")
    column, architecture = known
    checks = _checks(writing, asking, listening)
    return b"".join(step.pack() for step in _steps(checks, column, architecture))


def allow_all() -> bytes:
    """Build a filter that allows everything, to test what a kernel supports."""
    return _Step(_RETURN, _ALLOW).pack()


def _steps(checks: dict[str, list[_Step]], column: int, architecture: int) -> Iterator[_Step]:
    """Yield the whole filter: check the machine, then allow each listed call after its `checks`, by call name.

    `column`: the machine's numbers in calls.py; `architecture`: its AUDIT_ARCH number.
    """
    yield _Step(_LOAD, _MACHINE_AT)
    yield _Step(_EQUAL, architecture, 1, 0)
    yield _Step(_RETURN, _KILL)
    yield _Step(_LOAD, _NUMBER_AT)
    yield _Step(_AT_LEAST, _X32, 0, 1)
    yield _Step(_RETURN, _REFUSE)
    for name, numbers in (*calls.ALLOWED.items(), *calls.CHECKED.items()):
        number = numbers[column]
        if number is not None:
            answer = [*checks.get(name, ()), _Step(_RETURN, _ALLOW)]
            yield _Step(_EQUAL, number, 0, len(answer))
            yield from answer
    yield _Step(_AT_LEAST, calls.NEW_FROM, 0, 1)
    yield _Step(_RETURN, _ABSENT)
    yield _Step(_RETURN, _REFUSE)


def _checks(writing: bool, asking: bool, listening: bool) -> dict[str, list[_Step]]:
    """Return, by call name, the filter steps that refuse certain arguments; others are allowed.

    `writing`: allow opening to read and write. `asking`: otherwise let a listener program decide on such
    opens. Either allows requests to GPU drivers. `listening`: allow that listener's own requests.
    """
    opened = _without(_O_WRONLY | _O_CREAT | _O_TRUNC | _O_TMPFILE)
    if not writing:
        opened += [_Step(_ANY_BIT, _O_RDWR, 0, 1), _Step(_RETURN, _ASK if asking else _REFUSE)]
    requests = (*calls.IOCTLS, *(calls.LISTENER_IOCTLS if listening else ()))
    gpus = writing or asking
    return {
        "open": [_lower(1), *opened],
        "openat": [_lower(2), *opened],
        "clone": [_lower(0), *_without(_CLONE_REFUSED), _Step(_ANY_BIT, _CLONE_THREAD, 1, 0), _Step(_RETURN, _REFUSE)],
        "ioctl": [_lower(1), *(_gpu(requests) if gpus else _one_of(requests))],
        "fcntl": [_lower(1), *_one_of(calls.FCNTL_COMMANDS)],
        "prctl": [_lower(0), *_one_of(calls.PRCTL_OPTIONS)],
        "bpf": [_lower(0), *_one_of(calls.BPF_COMMANDS)],
        "sendto": _nothing_at(4),  # no address: only to the connected peer
        "prlimit64": [_lower(0), *_one_of((0,)), *_nothing_at(2)],  # for this process, and reading only
    }


def _lower(which: int) -> _Step:
    """Return the step that loads the lower half of argument `which` (from 0), which is all of an int."""
    return _Step(_LOAD, _ARGUMENTS_AT + 8 * which)


def _without(bits: int) -> list[_Step]:
    """Return steps that refuse the call if any of `bits` is set in the argument loaded before."""
    return [_Step(_ANY_BIT, bits, 0, 1), _Step(_RETURN, _REFUSE)]


def _one_of(values: Sequence[int]) -> list[_Step]:
    """Return steps that refuse the call unless the argument loaded before is one of `values`."""
    found = [_Step(_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [*found, _Step(_RETURN, _REFUSE)]


def _gpu(values: Sequence[int]) -> list[_Step]:
    """Return steps that refuse an ioctl unless its request, loaded before, is one of `values` or to a GPU driver."""
    found = [_Step(_EQUAL, value, len(values) - place + 2, 0) for place, value in enumerate(values)]
    masked = [_Step(_AND, calls.GPU_IOCTL_MASK), _Step(_EQUAL, calls.GPU_IOCTL, 1, 0)]
    return [*found, *masked, _Step(_RETURN, _REFUSE)]


def _nothing_at(which: int) -> list[_Step]:
    """Return steps that refuse the call unless both halves of pointer argument `which` (from 0) are 0."""
    return [step for half in (0, 4) for step in (_Step(_LOAD, _ARGUMENTS_AT + 8 * which + half), *_one_of((0,)))]
