"""Perf events that run a BPF program, at a tracepoint or on the clock of every CPU; closing one detaches it.

Source: perf_event_open(2), include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from pathlib import Path

from rankscope.probes.base import abilities
from rankscope.probes.bpf import tracepoints
from rankscope.probes.host.procfs import ROOT, parse_cpu_list, read_file

_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_ATTR_BYTES = 128
_CLOEXEC = 8
_SET_BPF, _ENABLE = 0x40042408, 0x2400
_TRACEPOINT, _SOFTWARE, _CPU_CLOCK = 2, 1, 0
_BY_FREQUENCY = 1 << 10  # the bit `freq` of perf_event_attr: the period is a frequency

_libc = ctypes.CDLL(None, use_errno=True)


def open_event(
    kind: int, config: int, program_fd: int, *, cpu: int = 0, period: int = 0, flags: int = 0, tail: bytes = b""
) -> int:
    """Open an enabled perf event that runs the program in any process; return its descriptor. Raises OSError.

    `kind`, `config`, `period`, `flags`: fields of perf_event_attr; `tail`: its bytes from offset 56 on. A
    tracepoint and a probe on a function fire on every CPU, whichever `cpu` is named.
    """
    number = _SYS_PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        raise OSError(f"perf_event_open(2) has no known number on {platform.machine()}")
    attributes = struct.pack("<IIQQQQQII", kind, _ATTR_BYTES, config, period, 0, 0, flags, 0, 0) + tail
    buffer = ctypes.create_string_buffer(attributes, _ATTR_BYTES)
    descriptor = int(_libc.syscall(number, buffer, -1, cpu, -1, _CLOEXEC))
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    try:
        fcntl.ioctl(descriptor, _SET_BPF, program_fd)
        fcntl.ioctl(descriptor, _ENABLE, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def attach_tracepoint(program_fd: int, event: str, root: Path = ROOT) -> int:
    """Run the program at the tracepoint category:name; return a descriptor. Raises OSError, ValueError."""
    abilities.need(abilities.TRACEPOINTS, errno.ENOENT)
    return open_event(_TRACEPOINT, int(tracepoints.read(event, "id", root)), program_fd)


def attach_clock(program_fd: int, hz: int, root: Path = ROOT) -> tuple[int, ...]:
    """Run the program `hz` times a second on each CPU that is online; return a descriptor for each CPU.

    Raises OSError, ValueError.
    """
    abilities.need(abilities.CLOCK, errno.ENOENT)
    opened: list[int] = []
    try:
        for cpu in sorted(parse_cpu_list(read_file(str(root / "sys/devices/system/cpu/online"), 4096).decode("ascii"))):
            opened.append(open_event(_SOFTWARE, _CPU_CLOCK, program_fd, cpu=cpu, period=hz, flags=_BY_FREQUENCY))
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return tuple(opened)
