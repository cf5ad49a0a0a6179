"""Whether a verdict on the known job is right. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SLOW_RANK, SLOW_FUNCTION = 1, "augment"


def healthy(verdict: Mapping[str, Any]) -> tuple[bool, str]:
    """Judge a verdict on the healthy job: nothing may be named that differs between ranks, and it must be a verdict."""
    status = verdict.get("status")
    return status in ("healthy", "inefficient"), described(verdict)


def slow_function(verdict: Mapping[str, Any]) -> tuple[bool, str]:
    """Judge a verdict on the job whose rank 1 is slow in one function: that is the first suspect, with its file and line."""
    first: Mapping[str, Any] = next(iter(verdict.get("suspects") or ()), {})
    function = first.get("function") or {}
    right = (
        verdict.get("status") == "fault"
        and first.get("ranks") == [SLOW_RANK]
        and function.get("name") == SLOW_FUNCTION
        and str(function.get("file")).endswith("train.py")
        and bool(function.get("line"))
    )
    return right, described(verdict)


def described(verdict: Mapping[str, Any]) -> str:
    """One line: status, first suspect, first note where nothing could be said."""
    status = str(verdict.get("status"))
    first = next(iter(verdict.get("suspects") or ()), None)
    if first is None:
        note = next(iter(verdict.get("notes") or ()), "no note")
        return f"{status}: {note}" if status == "unknown" else status
    ranks = ", ".join(map(str, first.get("ranks") or ()))
    function = first.get("function")
    place = (
        f" in {function.get('name')} ({str(function.get('file')).rpartition('/')[2]}:{function.get('line')})"
        if function
        else ""
    )
    return f"{status}: {first.get('component')}/{first.get('cause')}, rank {ranks}{place}"
