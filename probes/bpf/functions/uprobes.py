"""Attach probes to functions of a file, on their entry or their return.

Since Linux 6.6 the kernel attaches a program to a whole list of offsets (uprobe_multi): attaching
60 functions takes 0.4 ms and detaching them 20 ms, where separate perf events take 0.1-0.3 s each
to detach, one after the other (measured, Linux 6.18). Older kernels get the separate events.
Source: include/uapi/linux/bpf.h (BPF_LINK_CREATE, link_create.uprobe_multi), perf_event_open(2).

`counters`: the place (file offset of a 16-bit number) of the reference counter of each probe that
has one; shared_uprobes.py explains when one is needed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope.probes.base import abilities
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.bpf import perf_events, syscalls
from rankscope.probes.host.procfs import ROOT, read_file

TRACE_UPROBE_MULTI = 48  # enum bpf_attach_type
_BPF_LINK_CREATE = 28
_PERF_TYPE_PATH = "sys/bus/event_source/devices/uprobe/type"
_COUNTER_SHIFT = 32  # in perf_event_attr.config, /sys/bus/event_source/devices/uprobe/format/ref_ctr_offset
_NO_COUNTERS: Mapping[int, int] = {}
# CPU seconds for inserting one probe, above which no more are attached: every fork waits as long. A
# host with 2,000 processes needs 0.02 s.
PUT_IN_MOST_S = 0.1


class LeftAlone(RankscopeError):
    """A file gets no probe, as inserting one could delay every fork of the host."""


class MappedByOthers(LeftAlone):
    """Several users map the file, and no warden process guards the host.

    Each of these users could lock his own memory and so delay every fork.
    """

    help = (
        "Start the guard beside the service: rankscope-guard.service, or the container `guard` of watch-daemonset.yaml."
    )


class MappedTooOften(LeftAlone):
    """A page is mapped so often that a probe in it would delay every fork of the host."""

    help = "See which process maps the file thousands of times (/proc/PID/maps), and end it or give the job a copy of the file."


def attach_many(
    program_fd: int,
    path: Path,
    offsets: Sequence[int],
    *,
    on_return: bool = False,
    counters: Mapping[int, int] = _NO_COUNTERS,
    pid: int = 0,
) -> tuple[int, ...]:
    """Attach a program loaded for TRACE_UPROBE_MULTI to all file offsets; return the one descriptor of the link.

    Closing it detaches. `pid`: the one process whose memory gets the probes; 0 for all. Raises OSError.
    """
    abilities.need(abilities.UPROBES, errno.EINVAL)
    abilities.need(abilities.MANY_UPROBES, errno.EINVAL)
    name = ctypes.create_string_buffer(os.fsencode(path))
    places = (ctypes.c_uint64 * len(offsets))(*offsets)
    counts = (ctypes.c_uint64 * len(offsets))(*(counters.get(offset, 0) for offset in offsets))
    request = struct.pack(
        "<IIIIQQQQIIII", program_fd, 0, TRACE_UPROBE_MULTI, 0, ctypes.addressof(name), ctypes.addressof(places),
        ctypes.addressof(counts) if counters else 0, 0, len(offsets), int(on_return), pid, 0,
    )  # fmt: skip
    return (syscalls.call(_BPF_LINK_CREATE, ctypes.create_string_buffer(request, len(request))),)


def knows_many(program_fd: int) -> bool:
    """Tell whether this kernel has uprobe_multi.

    It then refuses the root folder with EBADF for being no file; older kernels refuse the request
    itself.
    """
    try:
        os.close(attach_many(program_fd, Path("/"), (0,))[0])
    except OSError as error:
        return error.errno == errno.EBADF
    return True


def attach_each(
    program_fd: int,
    path: Path,
    offsets: Sequence[int],
    *,
    on_return: bool = False,
    counters: Mapping[int, int] = _NO_COUNTERS,
    root: Path = ROOT,
) -> tuple[int, ...]:
    """Attach a program loaded as kprobe with one perf event per file offset; closing them detaches.

    Raises OSError, ValueError; MappedTooOften, with none left attached, where one took longer than
    `PUT_IN_MOST_S`.
    """
    abilities.need(abilities.UPROBES, errno.ENOENT)
    kind = int(read_file(str(root / _PERF_TYPE_PATH), 16))
    name = ctypes.create_string_buffer(os.fsencode(path))
    opened: list[int] = []
    try:
        for offset in offsets:
            config = int(on_return) | counters.get(offset, 0) << _COUNTER_SHIFT  # bit 0: format/retprobe
            place = struct.pack("<QQ", ctypes.addressof(name), offset)  # uprobe_path, probe_offset
            began_s = time.thread_time()
            opened.append(perf_events.open_event(kind, config, program_fd, tail=place))
            if (took_s := time.thread_time() - began_s) > PUT_IN_MOST_S:
                raise MappedTooOften(
                    f"attaching one probe took {took_s:.1f} s, during which it blocked every fork of this host"
                )
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return tuple(opened)
