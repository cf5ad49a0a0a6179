"""Python's collector of cycles, out of the way while a command loads what it needs.

It would look through all that is loaded again and again, and find nothing: 0.1 s of CPU of each start (of 0.65).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Nobody looks for cycles while modules are imported in here."""
    ran = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if ran:
            gc.enable()


def begin() -> None:
    """The command begins: cycles are looked for from now on, among what it makes. Nothing where nobody has held that up."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
