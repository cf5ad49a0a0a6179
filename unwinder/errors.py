"""What can go wrong when a Python process is looked at from outside, and what the operator can do about it."""

from __future__ import annotations

import struct

from rankscope.probes.errors import EXIT_MISSING, NotPermitted, RankscopeError

UNSEEN = (RankscopeError, OSError, ValueError, ArithmeticError, LookupError, struct.error)
"""What reading another program may meet, whose memory and files say what it likes: then that process is not seen into, and others are."""


class UnwindError(RankscopeError):
    """Root of the unwinder's errors: this process cannot be seen into; others can."""


class TargetGone(UnwindError):
    """The process ended, became another program (exec), or its pid now belongs to another process."""

    help = "Nothing to do: the process is no more."


class UnreadableMemory(UnwindError):
    """An address of the target is not mapped, or a length makes no sense."""

    help = "Expected now and then while the target runs; if it is always so, report it with the Python version."


class MemoryNotPermitted(NotPermitted, UnwindError):
    """The kernel does not let us read the target's memory."""

    help = "Run as root or with CAP_SYS_PTRACE, outside the target's user namespace."


class NotPython(UnwindError):
    """No Python interpreter is mapped into the process."""


class UnsupportedInterpreter(UnwindError):
    """An interpreter was found that the unwinder does not know: another implementation, version or build."""

    help = "CPython 3.8-3.15 with the GIL, release build, 64 bit is supported; elsewhere py-spy may know more."
    exit_code = EXIT_MISSING


class InterpreterNotReady(UnwindError):
    """The interpreter is mapped but has no threads yet, or none any more: ask again later."""

    help = "The process is starting or ending: look again in a second."


class FallbackFailed(UnwindError):
    """py-spy could not be run, or gave no samples."""

    help = "Install py-spy (`pip install py-spy`), and run as root."
    exit_code = EXIT_MISSING
