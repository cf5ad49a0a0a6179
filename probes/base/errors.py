"""The one root exception of Rankscope, and the exit codes every command shares.

Each situation an operator can meet has a subclass; each subclass carries `help`, one line that says
what to do, and the exit code of DESIGN.md ("Commands").
"""

from __future__ import annotations

EXIT_HEALTHY = 0
EXIT_DEGRADED = 1
EXIT_CRITICAL = 2
EXIT_UNKNOWN = 3
EXIT_USAGE = 64
EXIT_BAD_DATA = 65
EXIT_MISSING = 69
EXIT_NOT_PERMITTED = 77


class RankscopeError(Exception):
    """Base of every error that Rankscope raises on purpose."""

    help: str = ""
    exit_code: int = EXIT_UNKNOWN


class UsageError(RankscopeError):
    """The command was called with arguments that contradict each other."""

    help = "See `rankscope COMMAND --help`."
    exit_code = EXIT_USAGE


class NotPermitted(RankscopeError):
    """The process lacks a right that the operation needs."""

    help = "Run as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE and CAP_SYS_RESOURCE."
    exit_code = EXIT_NOT_PERMITTED


class NeedsRoot(NotPermitted):
    """Only root may do this, whatever capabilities the process has."""

    help = "Run as root."


class MissingFeature(RankscopeError):
    """The kernel or a library lacks something that the operation needs."""

    help = "`rankscope doctor` says what is missing and how to get it."
    exit_code = EXIT_MISSING


class NoRanks(RankscopeError):
    """No training process was found on this host."""

    help = "`rankscope ranks` lists the examined processes and why each was rejected."
    exit_code = EXIT_UNKNOWN


class BadData(RankscopeError):
    """A window folder, a baseline or a timing file cannot be used."""

    help = "Record the window again, or leave the file out."
    exit_code = EXIT_BAD_DATA


class NoSuchPlace(BadData):
    """A folder or file to read is not there."""

    help = "Check the path."


class OutputFailed(RankscopeError):
    """A result could not be written."""

    help = "Choose another folder, or free space in it."
    exit_code = EXIT_MISSING
