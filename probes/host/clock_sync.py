"""Read from the kernel whether the host's clock is synchronised, whatever program does it.

In: adjtimex(2), read only. Out: ClockState. A recorded tree has the file `adjtimex`: 'status=…
maxerror_us=… offset_us=…'.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, number, read_file

STA_UNSYNC, STA_NANO = 0x0040, 0x2000


class _Timex(ctypes.Structure):
    """struct timex of x86-64 and other 64-bit systems; what follows `tick` is not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


@dataclass(frozen=True, slots=True)
class ClockState:
    """Synchronisation state: `offset_s` is still to be corrected, `max_error_s` an error bound.

    The bound grows until the next correction.
    """

    synchronised: bool
    offset_s: float
    max_error_s: float


def read_clock(root: Path = ROOT) -> ClockState:
    """Read the state of the host's clock; below another root than /, from its recording `adjtimex`.

    Raises OSError, ValueError.
    """
    if root != ROOT:
        return parse_recorded(read_file(str(Path(root) / "adjtimex"), 4096).decode("ascii", "replace"))
    timex = _Timex()  # modes = 0: read only
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "adjtimex")
    unit = 1e-9 if timex.status & STA_NANO else 1e-6
    return ClockState(not timex.status & STA_UNSYNC, timex.offset * unit, timex.maxerror * 1e-6)


def parse_recorded(text: str) -> ClockState:
    """Parse a recorded reading: 'status=… maxerror_us=… offset_us=…'. Raises ValueError."""
    values = dict(word.split("=", 1) for word in text.split() if "=" in word)
    try:
        status = int(values["status"], 0)
        offset_us, most_us = (number(values[name].encode()) for name in ("offset_us", "maxerror_us"))
        return ClockState(not status & STA_UNSYNC, offset_us * 1e-6, most_us * 1e-6)
    except KeyError as error:
        raise ValueError(f"adjtimex: no {error}") from error
