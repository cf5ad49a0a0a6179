"""Counters that only grow, twice: what they grew by in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

Sample = TypeVar("Sample")


def grown(before: Sample, after: Sample, *counters: str) -> Sample:
    """`after` (a dataclass) with each field of `counters` reduced to its growth since `before`; one that fell, because it
    was set back, has grown by 0. The other fields are levels and names: as they are in `after`."""
    changed: dict[str, Any] = {}
    for field in counters:
        growth = getattr(after, field) - getattr(before, field)
        changed[field] = max(type(growth)(0), growth)
    return replace(after, **changed)  # type: ignore[type-var]
