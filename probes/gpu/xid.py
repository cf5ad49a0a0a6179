"""Xids, the critical errors of a GPU, received from NVML or read from the kernel's log.

In: pynvml and device handles. Out: (GPU index, number). The driver queues events from the
registration on; earlier ones are only in the kernel's log (`logged_xids`).
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rankscope.probes.gpu.nvml_fields import ask
from rankscope.probes.host.kmsg import KernelMessage

EVENT_XID = 0x8
# Format of the driver's kernel module: "NVRM: Xid (PCI:0000:3b:00): 79, pid=…, GPU has fallen off
# the bus."; with MIG the instance follows the address.
_LOGGED = re.compile(
    r"^NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?(?: GPU-I:\d{1,3})?\): (\d{1,4})"
)
_MAX_EVENTS = 256


@dataclass(frozen=True, slots=True)
class LoggedXid:
    """One Xid of the kernel's log. `bus`: 0000:3b:00, lower case, without the function; `time_s` by
    CLOCK_MONOTONIC.
    """

    bus: str
    number: int
    time_s: float


def logged_xids(messages: Iterable[KernelMessage]) -> tuple[LoggedXid, ...]:
    """Parse the Xids among kernel messages, in order. Never raises."""
    found = []
    for message in messages:
        if match := _LOGGED.match(message.text):
            found.append(LoggedXid(match[1].lower()[-10:], int(match[2]), message.time_s))
    return tuple(found)


class XidWatch:
    """Receives the Xids of GPUs from the driver. Call `close` when done."""

    def __init__(self, library: Any, handles: Mapping[int, Any]) -> None:
        """Register for events of `handles`, by GPU index. Never raises: `registered` lists the GPUs
        that support it.
        """
        self._library = library
        self._set: Any = None
        self._indices: dict[int | None, int] = {}
        with contextlib.suppress(Exception):
            self._set = library.nvmlEventSetCreate()
        if self._set is None:
            return
        for index, handle in handles.items():
            supported = ask(getattr(library, "nvmlDeviceGetSupportedEventTypes", None), handle)
            if supported is not None and not supported & EVENT_XID:
                continue
            with contextlib.suppress(Exception):
                library.nvmlDeviceRegisterEvents(handle, EVENT_XID, self._set)
                self._indices[_pointer(handle)] = index

    @property
    def registered(self) -> frozenset[int]:
        """Indexes of the GPUs whose Xids are received."""
        return frozenset(self._indices.values())

    def poll(self) -> list[tuple[int, int]]:
        """Return the events since the last call: (GPU index, Xid). Does not wait. Never raises."""
        found: list[tuple[int, int]] = []
        while self._indices and len(found) < _MAX_EVENTS:
            try:
                event = self._library.nvmlEventSetWait_v2(self._set, 0)
            except Exception:  # a time-out: no more events
                break
            index = self._indices.get(_pointer(event.device))
            if index is not None and event.eventType & EVENT_XID:
                found.append((index, int(event.eventData)))
        return found

    def close(self) -> None:
        """Stop listening. Never raises."""
        if self._set is not None:
            with contextlib.suppress(Exception):
                self._library.nvmlEventSetFree(self._set)
        self._set, self._indices = None, {}


def _pointer(handle: Any) -> int | None:
    """Return the address in a device handle, by which handles are compared; None for a null pointer."""
    return ctypes.cast(handle, ctypes.c_void_p).value
