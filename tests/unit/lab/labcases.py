"""Verdicts and results as the lab gets them, made by hand."""

from __future__ import annotations

import json
from typing import Any

from labkit.cases import Case, Result, plan_of
from labkit.faults import Truth
from labkit.step_times import Pace

BEFORE = Pace(40, 0.160, (0.02,) * 8, (0.01,) * 8)
AFTER = Pace(30, 0.240, (0.02, 0.10, *(0.02,) * 6), (0.01,) * 8)
PYTHON = Truth("fault", {"python": frozenset({"slow-function"})}, (1,), function="augment")
READ = Truth("fault", {"storage": frozenset({"slow-read"})}, (3,))
UNEVEN = Truth("imbalance", {"workload": frozenset({"data-imbalance"})}, (1,))
HEALTHY = Truth("healthy", {})


def suspect(
    component: str, cause: str, ranks: tuple[int, ...], function: str | None = None, **more: Any
) -> dict[str, Any]:
    place = {"kind": "python", "name": function, "file": "job.py", "line": 1} if function else None
    return {
        "component": component, "cause": cause, "ranks": list(ranks), "host": "a", "function": place,
        "confidence": 0.9, **more,
    }  # fmt: skip


def verdict(status: str, *suspects: dict[str, Any]) -> str:
    return json.dumps({"schema": "rankscope.verdict/1", "status": status, "suspects": suspects})


AUGMENT = suspect("python", "slow-function", (1,), "augment")
SLOW_READ = suspect("storage", "slow-read", (3,))
FOREIGN = suspect("cpu", "contended", (2,))


def result(fault: str, truth: Truth, text: str, seed: int = 1, dose: str = "strong", **more: Any) -> Result:
    case = Case(fault, seed, dose=dose)
    return Result(
        case, plan_of(case), "", "", truth, 13.0, before=BEFORE, after=AFTER, verdict=text, wall_s=20.0, **more
    )
