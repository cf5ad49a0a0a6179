"""Python's collector of cycles, out of the way while much is made that lives on: modules as a command loads, what many hosts told."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Nobody looks for cycles meanwhile: that walks all there is again and again, and finds nothing (0.1 of the 0.65 s of CPU of a start;
    more with 125,000 hosts)."""
    ran = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if ran:
            gc.enable()


def begin() -> None:
    """A command begins: cycles are looked for from now on, among what it makes. Nothing where nobody has held that up."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
