"""What the numbers of NVIDIA's Xid errors mean: who causes them and what to do.

Severities: NVIDIA's Xid catalogue as gpud applies it (shared reference "operators", D4), except for what a process can cause by
itself on its own channel (32, 65, 68, 69): gpud asks for a reboot, the catalogue (RESTART_APP) for a restart of the application.
They are warnings, for whoever may use a GPU could have its host drained by them. To add an Xid, add a row.
"""

from __future__ import annotations

from rankscope.diagnose.budgets import DIGITS_MOST
from rankscope.diagnose.severity import CRITICAL, WARNING

_RESET, _INSPECT = "Drain the host and reset the GPU or reboot.", "Drain the host; have the GPU inspected."
_APPLICATION = "Look at the job first: user code causes this; the GPU is suspect if it follows the GPU."
_STREAM = "Look at the job first: user code can cause this; the GPU and its PCIe link (pcie.aer) are suspect if it follows the GPU."
# number: (what, state, action)
XIDS: dict[int, tuple[str, str, str]] = {
    13: ("graphics engine exception", WARNING, _APPLICATION),
    31: ("GPU memory page fault", WARNING, _APPLICATION),
    32: ("invalid push buffer", WARNING, _STREAM),
    38: ("driver firmware error", CRITICAL, _RESET),
    43: ("GPU stopped processing", WARNING, _APPLICATION),
    44: ("graphics engine fault", CRITICAL, _RESET),
    45: ("preemptive cleanup", WARNING, "Follow the Xid that came before it."),
    46: ("GPU timeout", CRITICAL, _RESET),
    48: ("double-bit ECC error", CRITICAL, _RESET),
    62: ("PMU halted", CRITICAL, _RESET),
    63: ("row remapped", WARNING, "Reset the GPU when the job is over, so that the row remap takes effect."),
    64: ("row remap failed", CRITICAL, _INSPECT),
    65: ("video processor exception", WARNING, _APPLICATION),
    68: ("video processor exception", WARNING, _APPLICATION),
    69: ("graphics engine class error", WARNING, _APPLICATION),
    74: ("NVLink error", CRITICAL, "Drain the host, reset the GPU; inspect the link (bridge, switch) if it repeats."),
    79: ("GPU has fallen off the bus", CRITICAL, "Drain the host and power-cycle it; inspect the GPU if it repeats."),
    92: ("many corrected ECC errors", WARNING, _INSPECT),
    94: ("contained memory error", WARNING, "Restart the job; reset the GPU when it is idle."),
    95: ("uncontained memory error", CRITICAL, _RESET),
    109: ("context switch timeout", WARNING, _RESET),
    110: ("security fault", CRITICAL, _RESET),
    119: ("GSP timeout", CRITICAL, _RESET),
    120: ("GSP error", CRITICAL, _RESET),
    121: ("C2C link error", CRITICAL, _RESET),
    123: ("PMU error", CRITICAL, _RESET),
    136: ("link training failed", WARNING, _RESET),
    137: ("NVLink privilege error", WARNING, _APPLICATION),
    140: ("unrecovered ECC error", CRITICAL, _RESET),
    143: ("GPU initialisation failed", CRITICAL, _RESET),
    154: ("recovery action changed", WARNING, "Do what gpu.recovery says."),
    155: ("NVLink software error", WARNING, _RESET),
    156: ("resource retirement", WARNING, _RESET),
    158: ("GPU fatal timeout", WARNING, _RESET),
    167: ("PCIe fatal timeout", WARNING, _RESET),
    **dict.fromkeys(range(144, 151), ("NVLink 5 error", WARNING, _RESET)),
}

# Memory errors have counters of their own and a cause of their own (ecc-errors).
_MEMORY = frozenset((48, 63, 64, 92, 94, 95, 140))
_NVLINK = frozenset((74, 136, 137, *range(144, 151), 155))
_LOST = 79
# What user code causes or can cause, and what only follows another Xid. A process writes the push buffer (32), the methods of an
# engine's class (69) and the streams to decode and encode (68, 65) itself; the driver ends its channel for them and nobody else's.
# 94 is on the operators' list of application errors because the application is to be restarted; what it reports is a memory error
# that no application can cause.
_OF_APPLICATION = frozenset((13, 31, 32, 43, 45, 65, 68, 69, 137))


def number_of(text: str) -> int | None:
    """The number that the end of a counter's name says; None where it says none. Whoever writes a window chooses the name: '²' is a digit
    and no number, and of thousands of digits Python makes none."""
    plain = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MOST
    return int(text) if plain else None


def meaning(number: int) -> tuple[str, str, str]:
    """(what, state, action); an Xid that is not in the table is a warning."""
    return XIDS.get(number, ("not in the table", WARNING, "Look it up in NVIDIA's Xid catalogue."))


def by_application(number: int) -> bool:
    """Whether user code causes it, or can: it says why a rank died, and nothing about the GPU."""
    return number in _OF_APPLICATION


def ends_application(number: int) -> bool:
    """Whether user code can cause it and dies of it. 43 and 45 do not count: they follow the end of a process, whatever ended it."""
    return number in (13, 31, 32, 65, 68, 69)


def of_memory(number: int) -> bool:
    """Whether it reports errors of the GPU's memory."""
    return number in _MEMORY


def of_nvlink(number: int) -> bool:
    """Whether it reports errors of NVLink."""
    return number in _NVLINK


def means_lost(number: int) -> bool:
    """Whether the GPU has fallen off the bus."""
    return number == _LOST


def ends_ranks(number: int) -> bool:
    """Whether a rank that dies or stands still is explained by it: hardware, and what the application cannot survive."""
    return not by_application(number) and (meaning(number)[1] == CRITICAL or number in (94, 109, 158, 167))
