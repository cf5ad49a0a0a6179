"""Python's own children, isolated: what `multiprocessing` starts imports nothing from the folder that somebody stood in."""

from __future__ import annotations

from multiprocessing import util

_ASK = "_args_from_interpreter_flags"  # in util of every Python since 3.4; how spawn and the tracker of semaphores get their options


def isolate_children() -> None:
    """From now on, for the life of this process: it starts them when it likes, the tracker as the first lock is made.

    They are `python -c …`, and that looks for every module, those of Python too, in the current folder first: `cd` into somebody's folder
    of windows, and a multiprocessing.py in it would run as root. With -I it looks there for none, and at no PYTHONPATH; where this process
    imports from is handed to a child by `spawn` itself. PYTHONSAFEPATH would do, but 3.10 does not know it.
    """
    before = getattr(util, _ASK)
    if "-I" not in before():
        setattr(util, _ASK, lambda: [*before(), "-I"])
