"""bpf(2), and its information on loaded programs: run-time statistics, names.

Source: include/uapi/linux/bpf.h (BPF_ENABLE_STATS since Linux 5.8, bpf_prog_info.run_time_ns since
5.1).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from dataclasses import dataclass

from rankscope.probes.base import abilities

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_GET_NEXT_ID = 11
_BPF_PROG_GET_FD_BY_ID = 13
_BPF_OBJ_GET_INFO_BY_FD = 15
_BPF_ENABLE_STATS = 32
_BPF_STATS_RUN_TIME = 0

# Byte offsets in struct bpf_prog_info, which only ever grows at its end.
_INFO_BYTES = 232
_NAME_AT = 64
_RUN_TIME_AT = 192
_RUN_COUNT_AT = 200

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class ProgramStats:
    """Run count and run time of one program while statistics were on."""

    run_count: int
    run_time_ns: int


def call(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    """Call bpf(2) with a command and its attributes (union bpf_attr); return the result. Raises OSError."""
    number = _SYS_BPF.get(platform.machine())
    if number is None:
        raise OSError(f"bpf(2) has no known number on {platform.machine()}")
    result = int(_libc.syscall(number, command, attributes, len(attributes)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def enable_stats() -> int:
    """Turn on run-time statistics for as long as the returned descriptor is open. OSError before
    Linux 5.8.
    """
    abilities.need(abilities.STATISTICS, errno.EINVAL)
    attributes = ctypes.create_string_buffer(_BPF_STATS_RUN_TIME.to_bytes(4, "little"), 16)
    return call(_BPF_ENABLE_STATS, attributes)


def _info(fd: int) -> bytes:
    """Read struct bpf_prog_info of a loaded program, by its descriptor. Raises OSError."""
    info = ctypes.create_string_buffer(_INFO_BYTES)
    request = (
        fd.to_bytes(4, "little") + _INFO_BYTES.to_bytes(4, "little") + ctypes.addressof(info).to_bytes(8, "little")
    )
    call(_BPF_OBJ_GET_INFO_BY_FD, ctypes.create_string_buffer(request, 16))
    return info.raw


def program_stats(fd: int) -> ProgramStats:
    """Read run count and run time of a loaded program, by its descriptor. Raises OSError."""
    info = _info(fd)
    count, time_ns = (int.from_bytes(info[at : at + 8], "little") for at in (_RUN_COUNT_AT, _RUN_TIME_AT))
    return ProgramStats(count, time_ns)


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A BPF program loaded in the kernel, by any process."""

    identity: int
    name: str


def loaded_programs() -> tuple[LoadedProgram, ...]:
    """List all BPF programs of this kernel. OSError without the right to do so."""
    found: list[LoadedProgram] = []
    identity = 0
    while True:
        request = ctypes.create_string_buffer(identity.to_bytes(4, "little"), 16)
        try:
            call(_BPF_PROG_GET_NEXT_ID, request)
        except FileNotFoundError:
            return tuple(found)
        identity = int.from_bytes(request.raw[4:8], "little")
        try:
            fd = call(_BPF_PROG_GET_FD_BY_ID, ctypes.create_string_buffer(identity.to_bytes(4, "little"), 16))
        except FileNotFoundError:  # gone meanwhile
            continue
        try:
            found.append(LoadedProgram(identity, _info(fd)[_NAME_AT : _NAME_AT + 16].split(b"\0")[0].decode()))
        finally:
            os.close(fd)
