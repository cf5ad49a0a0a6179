"""Isolate Python's child processes: `multiprocessing` imports nothing from the current folder."""

from __future__ import annotations

from multiprocessing import util

_ASK = "_args_from_interpreter_flags"  # in multiprocessing.util since 3.4; options for spawn and the semaphore tracker


def isolate_children() -> None:
    """Start all children of `multiprocessing` with `python -I`, for the life of this process.

    They are `python -c …`, which looks for every module in the current folder first: after `cd`
    into a folder of windows that another user owns, its multiprocessing.py would run as root. With
    -I neither that folder nor PYTHONPATH is searched; `spawn` passes sys.path to the child itself.
    PYTHONSAFEPATH needs Python 3.11.
    """
    before = getattr(util, _ASK)
    if "-I" not in before():
        setattr(util, _ASK, lambda: [*before(), "-I"])
