"""What people call a job: its script or module, and the scheduler's number and name. Pure.

A title is for reading. Windows of one job on several hosts are matched by its identity (identity.py), never by this.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankscope.probes.text import printable

_NAME_CAP = 60
_SCHEDULERS = (
    ("slurm", "SLURM_JOB_ID", "SLURM_JOB_NAME"),
    ("pbs", "PBS_JOBID", "PBS_JOBNAME"),
    ("lsf", "LSB_JOBID", "LSB_JOBNAME"),
)
_VALUED = ("-X", "-W", "--check-hash-based-pycs")  # options of the interpreter with a value of their own


def scheduler_job(environ: Mapping[str, str]) -> str:
    """`slurm 1234 my-run`: the scheduler, the number and the name of the job; '' where there is none."""
    for scheduler, number, name in _SCHEDULERS:
        if environ.get(number):
            words = (scheduler, environ[number], environ.get(name, ""))
            return printable(" ".join(word for word in words if word), _NAME_CAP)
    return ""


def title(command: tuple[str, ...], scheduler: str) -> str:
    """`train.py (slurm 1234 my-run)`, `-m pkg.train`; '' where neither a script nor a scheduler names the job."""
    what = program(command)
    if what and scheduler:
        return f"{what} ({scheduler})"
    return what or scheduler


def program(command: tuple[str, ...]) -> str:
    """The script (its file's name) or the module (`-m name`) that a Python command line runs; else the program's name."""
    if not command or not command[0].strip():
        return ""
    first = command[0].strip()
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
        elif word in _VALUED:
            skip = True
        elif not word.startswith("-"):
            return printable(word.rpartition("/")[2], _NAME_CAP)
    return ""


def is_python(command: tuple[str, ...]) -> bool:
    """Whether a command line is an interpreter's, which names its script or module."""
    return bool(command) and command[0].strip().rpartition("/")[2].startswith(("python", "pypy"))


def of_multiprocessing(command: tuple[str, ...]) -> bool:
    """Whether it is one that Python's multiprocessing made: of a process that was spawned, or of the server that forks them."""
    return is_python(command) and (
        "--multiprocessing-fork" in command or any("multiprocessing.forkserver" in word for word in command[1:64])
    )
