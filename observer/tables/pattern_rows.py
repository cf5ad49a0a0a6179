"""Patterns and steps of one rank as rows of their tables (schema.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.observer.thread.patterns import Pattern, StepTimes


def pattern_row(rank: int, thread: str, pattern: Pattern) -> dict[str, Any]:
    """A pattern as a row of the table `patterns`."""
    function = pattern.function
    return {
        "rank": rank,
        "thread": thread,
        "kind": function.kind,
        "name": function.name,
        "file": function.file,
        "line": function.line,
        "detail": function.detail,
        "caller": function.caller,
        "stack": function.stack,
        "native": pattern.native,
        "beta": pattern.beta,
        "mu": pattern.mu,
        "sigma": pattern.sigma,
        "resource": function.resource,
        "count": pattern.count,
        "total_s": pattern.total_s,
        "p50_s": pattern.p50_s,
        "p99_s": pattern.p99_s,
        "max_s": pattern.max_s,
        "per_step_s": pattern.per_step_s,
        "per_step_sd_s": pattern.per_step_sd_s,
        "bytes": pattern.bytes,
    }


def step_rows(rank: int, times: StepTimes) -> list[dict[str, Any]]:
    """Steps as rows of the table `steps`; those whose own time is not known are left out."""
    return [
        {
            "rank": rank, "step": index, "start_s": times.start_s[index], "seconds": times.seconds[index],
            "own_s": times.own_s[index], "wait_s": times.wait_s[index], "io_s": times.io_s[index],
            "sched_s": times.sched_s[index], "sync_s": times.sync_s[index],
        }
        for index in np.flatnonzero(np.isfinite(times.own_s)).tolist()
    ]  # fmt: skip
