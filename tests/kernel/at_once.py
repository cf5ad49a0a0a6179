"""What many tests of a file wait for, each for its own: made a few at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

Made = TypeVar("Made")
Of = Callable[[str, pytest.FixtureRequest], Made]  # what was made of a name, for the test that asks


@contextlib.contextmanager
def at_once(most: int, make: Callable[[str], Made], names: Iterable[str]) -> Iterator[Of[Made]]:
    """`make(name)` for each name, `most` at a time, from now on; yields what waits for one of them, or raises what it raised.

    A test that is run once more (tests/conftest.py) gets one made anew.
    """
    pool = ThreadPoolExecutor(most)
    made = {name: pool.submit(make, name) for name in names}

    def of(name: str, request: pytest.FixtureRequest) -> Made:
        again = getattr(request.node, "execution_count", 1) > 1
        return make(name) if again else made[name].result()

    try:
        yield of
    finally:
        pool.shutdown(cancel_futures=True)
