"""Python's collector of cycles, out of the way while millions of objects are made that live on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Nobody looks for cycles meanwhile: with what is known of 125,000 hosts that walks all of it again and again, and finds nothing."""
    ran = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if ran:
            gc.enable()
