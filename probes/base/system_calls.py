"""System call numbers: translate those of this machine to x86-64, which the rest of the code uses.

Sources: include/uapi/asm-generic/unistd.h (aarch64), arch/x86/entry/syscalls/syscall_64.tbl. From
424 on both are the same.
"""

from __future__ import annotations

import platform

import numpy as np
import numpy.typing as npt

_SAME_FROM = 424
# from here on: markers that the probes use in place of a number (probes/sched/probe.py)
_NO_NUMBERS = 0xFFFE
_OTHER = 0x8000  # added to a number without translation, as x86-64 may have another call there
# Calls in which threads wait, for each other, for files or for sockets; calls that arm64 has only
# under a newer name map to the old one.
_AARCH64 = {
    8: 191, 22: 281, 25: 72, 32: 73, 35: 263, 38: 264, 45: 76, 46: 77, 48: 269, 56: 257, 57: 3, 61: 217, 63: 0, 64: 1, 65: 19, 66: 20,
    67: 17, 68: 18, 69: 295, 70: 296, 71: 40, 72: 270, 73: 271, 76: 275, 79: 262, 80: 5, 81: 162, 82: 74, 83: 75, 84: 277, 95: 247,
    98: 202, 101: 35, 115: 230, 133: 130, 137: 128, 192: 220, 193: 65, 202: 43, 203: 42, 206: 44, 207: 45, 211: 46, 212: 47, 213: 187,
    214: 12, 215: 11, 216: 25, 222: 9, 223: 221, 226: 10, 227: 26, 233: 28, 242: 288, 243: 299, 260: 61, 267: 306, 269: 307, 276: 316,
    285: 326, 286: 327, 287: 328, 291: 332,
}  # fmt: skip
MACHINES = {"x86_64": None, "aarch64": _AARCH64}


def _table(pairs: dict[int, int]) -> npt.NDArray[np.uint16]:
    """Build an array of x86-64 numbers by this machine's; a number without translation gets `_OTHER` added."""
    table = np.arange(1 << 16, dtype=np.uint16)
    table[:_SAME_FROM] |= _OTHER
    table[list(pairs)] = list(pairs.values())
    return table


def are_others(machine: str = "") -> bool:
    """Tell whether this machine's numbers differ from those of x86-64."""
    return MACHINES.get(machine or platform.machine()) is not None


def known_as(numbers: npt.NDArray[np.uint16], machine: str = "") -> npt.NDArray[np.uint16]:
    """Translate system call numbers of `machine` ('': this one) to x86-64; markers remain unchanged."""
    pairs = MACHINES.get(machine or platform.machine())
    return numbers if pairs is None else _table(pairs)[numbers]


def known(number: int, machine: str = "") -> int:
    """Translate one system call number of `machine` ('': this one) to x86-64.

    A number without translation gets `_OTHER` added.
    """
    pairs = MACHINES.get(machine or platform.machine())
    if pairs is None or not 0 <= number < _SAME_FROM:
        return number
    return pairs.get(number, number | _OTHER)


def shown(number: int) -> int:
    """Return the number to display: where it has no translation, the machine's own, without `_OTHER`."""
    return number & ~_OTHER if number < _NO_NUMBERS else number
