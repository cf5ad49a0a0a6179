"""Errors of reading a Python process from outside, each with what the operator can do about it."""

from __future__ import annotations

import struct

from rankscope.probes.base.errors import EXIT_MISSING, NotPermitted, RankscopeError

UNSEEN = (RankscopeError, OSError, ValueError, ArithmeticError, LookupError, struct.error)
"""Errors of reading another process, whose memory and files may hold anything: skip it and continue with others."""


class UnwindError(RankscopeError):
    """Base of the unwinder's errors: this one process cannot be read; others are unaffected."""


class TargetGone(UnwindError):
    """The process ended, called exec, or its pid now belongs to another process."""

    help = "Nothing to do: the process has ended."


class UnreadableMemory(UnwindError):
    """An address of the target is not mapped, or a length read there is impossible."""

    help = "Happens occasionally while the target runs; if it happens every time, report it with the Python version."


class MemoryNotPermitted(NotPermitted, UnwindError):
    """The kernel does not let us read the target's memory."""

    help = "Run as root or with CAP_SYS_PTRACE, outside the target's user namespace."


class NotPython(UnwindError):
    """No Python interpreter is mapped into the process."""


class UnsupportedInterpreter(UnwindError):
    """The interpreter is one that the unwinder does not support: implementation, version or build."""

    help = "Supported: CPython 3.8-3.15 with the GIL, release build, 64 bit; py-spy may support others."
    exit_code = EXIT_MISSING


class InterpreterNotReady(UnwindError):
    """The interpreter is mapped but has no thread state (yet, or any more); retry later."""

    help = "The process is starting or ending: look again in a second."


class FallbackFailed(UnwindError):
    """py-spy could not be run, or returned no samples."""

    help = "Install py-spy (`pip install py-spy`), and run as root."
    exit_code = EXIT_MISSING
