"""JSON that somebody else may have written: finite numbers of at most 64 bits, nothing else. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

_MOST_DIGITS = 20  # of a 64-bit number, with its sign


def parsed(data: str | bytes) -> Any:
    """Parse JSON, accepting only finite numbers of at most 64 bits. Raises ValueError,
    RecursionError.
    """
    return json.loads(data, parse_constant=_finite, parse_float=_finite, parse_int=_integer)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("no number")
    return number


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number that counts nothing")
    return int(text)
