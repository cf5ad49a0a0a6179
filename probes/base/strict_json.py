"""JSON that somebody else may have written: only finite numbers, integers of at most 20 characters. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

_MOST_DIGITS = 20  # of a 64-bit number, with its sign


def parsed(data: str | bytes) -> Any:
    """Parse JSON, accepting only finite numbers, and integers of at most `_MOST_DIGITS` characters.

    Raises ValueError, RecursionError.
    """
    return json.loads(data, parse_constant=_finite, parse_float=_finite, parse_int=_integer)


def _finite(text: str) -> float:
    """Convert a JSON number that is no integer, or a word such as NaN, to float. Raises ValueError if not finite."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("no number")
    return number


def _integer(text: str) -> int:
    """Convert a JSON integer to int. Raises ValueError if it is longer than any of 64 bits."""
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number that counts nothing")
    return int(text)
