"""One call for each target, each in a process of its own: what one target has cached or traced is none of the next one's."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import TypeVar

from campaignkit.fuzz.place import clear

_Result = TypeVar("_Result")


def each_in_a_fork(call: Callable[[str], _Result], names: Sequence[str]) -> dict[str, _Result]:
    """Return by name what `call` returns for it. Folders in memory of these processes, which are ended, are removed."""
    try:
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            return dict(zip(names, pool.map(call, names, chunksize=1), strict=True))
    finally:
        clear()
