"""Titles of jobs for people: script or module, and the scheduler's number and name. Pure.

A title is for display. Windows of one job on several hosts are matched by its identity
(identity.py), never by this.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from rankscope.probes.base.command_line import VALUED, is_python, without_passwords, words_of
from rankscope.probes.base.text import printable

_NAME_CAP = 60
_SCHEDULERS = (
    ("slurm", "SLURM_JOB_ID", "SLURM_JOB_NAME"),
    ("pbs", "PBS_JOBID", "PBS_JOBNAME"),
    ("lsf", "LSB_JOBID", "LSB_JOBNAME"),
)
# Modules that run code which another process pickled for them: that process's command line names
# the code.
_RUNNERS = (
    "submitit.core._submit",
    "submitit.local._local",
    "joblib.externals.loky.backend.popen_loky_posix",
    "loky.backend.popen_loky_posix",
)


def scheduler_job(environ: Mapping[str, str]) -> str:
    """Format scheduler, number and name of a job, `slurm 1234 my-run`; '' where there is none."""
    for scheduler, number, name in _SCHEDULERS:
        if environ.get(number):
            words = (scheduler, environ[number], environ.get(name, ""))
            return printable(without_passwords(" ".join(word for word in words if word)), _NAME_CAP)
    return ""


def title(command: tuple[str, ...], scheduler: str) -> str:
    """Format a title: `train.py (slurm 1234 my-run)`, `-m pkg.train`; '' where neither script nor
    scheduler is known.
    """
    what = program(command)
    if what and scheduler:
        return f"{what} ({scheduler})"
    return what or scheduler


def program(command: tuple[str, ...]) -> str:
    """Return the script (its file's name) or the module (`-m name`) of a Python command line; else
    the program's name.
    """
    command = words_of(command)
    if not command:
        return ""
    first = command[0].strip().partition("=")[0]
    if not is_python(command):
        return printable(first if "::" in first else first.rpartition("/")[2], _NAME_CAP)
    skip = False
    for position, word in enumerate(command[1:64], 1):
        if skip:
            skip = False
        elif word == "-m" and position + 1 < len(command):
            return printable(f"-m {command[position + 1]}", _NAME_CAP)
        elif word == "-c":
            return "python -c"
        elif word in VALUED:
            skip = True
        elif not word.startswith("-"):
            return printable(word.rpartition("/")[2], _NAME_CAP)
    return ""


def runs_anothers(command: tuple[str, ...]) -> bool:
    """Tell whether a command line does not name its program, but that of the parent process does.

    True for processes of Python's multiprocessing (spawned ones, fork servers), and for modules
    that run pickled code.
    """
    if not is_python(command):
        return False
    handed = any(one == "-m" and other in _RUNNERS for one, other in itertools.pairwise(command))
    return (
        handed
        or "--multiprocessing-fork" in command
        or any("multiprocessing.forkserver" in word for word in command[1:64])
    )
