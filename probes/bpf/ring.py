"""Read the BPF event ring as one array.

bcc passes ring-buffer records to a Python function one by one (about 2 µs each). Ours all have the
same size, a cache line with its header, and the kernel maps the data area twice in a row, so that
everything between consumer and producer is one numpy view. Layout: Linux kernel/bpf/ringbuf.c
(consumer page, producer page, data pages twice), record header struct bpf_ringbuf_hdr {u32 len with
busy and discard bits; u32 pg_off}. No fences: loads that must stay in order are thousands of
interpreter instructions apart, more than a CPU has in flight.
"""

from __future__ import annotations

import mmap
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankscope.probes.base import system_calls
from rankscope.probes.base.errors import RankscopeError

EVENT = np.dtype(
    [
        ("header", "<u4"),
        ("page", "<u4"),
        ("ts_ns", "<u8"),
        ("dur_ns", "<u8"),
        ("ready_ns", "<u8"),
        ("stack", "<u8"),
        ("arg", "<i8"),
        ("tid", "<u4"),
        ("tgid", "<u4"),
        ("type", "<u2"),
        ("what", "<u2"),
        ("aux", "<u4"),
    ]
)
STRIDE_BYTES = 64
_BUSY = 1 << 31
_DISCARDED = 1 << 30

OFFCPU, SAMPLE, CALL, FILE, EXIT, NATIVE, IDLE, LAUNCH = 1, 2, 3, 4, 5, 6, 7, 8

Events: TypeAlias = "npt.NDArray[np.void]"


class RingError(RankscopeError):
    """The event ring contains a record that no probe of ours wrote."""

    help = "Please report this: it should not be possible."


class Ring:
    """Consumer side of one BPF ring buffer whose records are all `EVENT`."""

    def __init__(self, map_fd: int, data_bytes: int) -> None:
        """Map the ring's pages. `data_bytes`: size of its data area. Raises OSError."""
        page = mmap.PAGESIZE
        self._data_bytes = data_bytes
        self._consumer = mmap.mmap(map_fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._rest = mmap.mmap(map_fd, page + 2 * data_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._consumed: npt.NDArray[np.uint64] | None = np.frombuffer(self._consumer, "<u8", 1)
        self._produced: npt.NDArray[np.uint64] | None = np.frombuffer(self._rest, "<u8", 1)
        self._data: npt.NDArray[np.uint8] | None = np.frombuffer(self._rest, np.uint8, offset=page)

    def drain(self) -> Events:
        """Copy all finished events, oldest first, and free their space in the ring. Raises RingError.

        System call numbers in OFFCPU events are translated to those of x86-64.
        """
        if self._data is None or self._consumed is None or self._produced is None:
            return np.empty(0, EVENT)
        start, end = int(self._consumed[0]), int(self._produced[0])
        count = (end - start) // STRIDE_BYTES
        if count <= 0:
            return np.empty(0, EVENT)
        at = start % self._data_bytes
        view = self._data[at : at + count * STRIDE_BYTES].view(EVENT)
        headers = view["header"]
        if (headers == STRIDE_BYTES - 8).all():  # true nearly always
            events: Events = view.copy()
        else:
            busy = np.flatnonzero(headers & _BUSY)
            if len(busy):  # another CPU is still writing this one: the rest comes next time
                view = view[: busy[0]]
            lengths = view["header"] & ~np.uint32(_BUSY | _DISCARDED)
            if len(view) and (lengths != STRIDE_BYTES - 8).any():
                raise RingError(f"record of {int(lengths.max())} bytes in the event ring, expected {STRIDE_BYTES - 8}")
            events = view[(view["header"] & _DISCARDED) == 0].copy()
        self._consumed[0] = start + len(view) * STRIDE_BYTES
        if system_calls.are_others():
            away = events["type"] == OFFCPU
            events["what"][away] = system_calls.known_as(events["what"][away])
        return events

    def close(self) -> None:
        self._consumed = self._produced = self._data = None
        self._rest.close()
        self._consumer.close()
