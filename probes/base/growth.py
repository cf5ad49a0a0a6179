"""Growth of counters between two samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

Sample = TypeVar("Sample")


def grown(before: Sample, after: Sample, *counters: str) -> Sample:
    """Return `after` (a dataclass) with each field of `counters` replaced by its growth since
    `before`.

    A counter that fell was reset: growth 0. The other fields, levels and names, remain as in
    `after`.
    """
    changed: dict[str, Any] = {}
    for field in counters:
        growth = getattr(after, field) - getattr(before, field)
        changed[field] = max(type(growth)(0), growth)
    return replace(after, **changed)  # type: ignore[type-var]
