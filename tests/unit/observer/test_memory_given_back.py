"""What a process that lives long lets go of between its windows."""

from __future__ import annotations

import gc
import weakref

from rankscope.observer.live.limits import give_back


class _Circle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_that_nobody_has_collected_is_let_go() -> None:
    gc.collect()
    gc.disable()
    try:
        left = weakref.ref(_Circle())
        assert left() is not None
        give_back(garbage=True)
        assert left() is None
    finally:
        gc.enable()
