"""Growth of hardware counters, which wrap, get reset and stop at their maximum. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

_WORD = 1 << 32


def growth(before: int, after: int) -> int:
    """Return the growth of a counter between two readings.

    after − before where it did not fall. Where it fell from the upper quarter of 32 bits to the
    lower quarter, it wrapped: after + 2^32 − before. Any other fall is a reset, and the count
    before it is unknown: 0, so that a reset never looks like an error storm.
    """
    if after >= before:
        return after - before
    if before < _WORD and before >= _WORD // 4 * 3 and after < _WORD // 4:
        return after + _WORD - before
    return 0


def total_growth(values: Iterable[int | None]) -> int | None:
    """Sum the growth from each value to the next, skipping None; None with fewer than two values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    return sum(growth(before, after) for before, after in itertools.pairwise(known))


def cumulative(values: Sequence[int]) -> list[int]:
    """Return a counter's values without wraps and resets: the first one, then that plus all growth; never falling."""
    if not values:
        return []
    result = [values[0]]
    for before, after in itertools.pairwise(values):
        result.append(result[-1] + growth(before, after))
    return result
