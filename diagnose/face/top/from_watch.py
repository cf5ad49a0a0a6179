"""Snapshots from the black box of this host's service: a line per job every 5 s. Pure.

The service sees step ends and waits, but no stacks: suspects are named, what a rank works on is
not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rankscope.diagnose import limits
from rankscope.diagnose.face.top.snapshot import OTHERS, OWN, PARTS, CounterNow, JobNow, RankNow, Snapshot, SuspectNow
from rankscope.diagnose.service.alarms import SILENT_S
from rankscope.diagnose.text import clean, seconds, short

SOURCE = "from rankscope watch"
_OLD_S = 15.0  # three lines of a job: it or the service has ended
_BEAT_S = 1.0
_STEPS = 200


def snapshot_of(lines: Iterable[dict[str, Any]], counters: tuple[CounterNow, ...], host: str, now: float) -> Snapshot:
    """Build a snapshot. `lines`: of the black box, oldest first; `now`: Unix time."""
    by_job: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if float(line["time"]) > now + _BEAT_S:
            continue  # the clock was ahead then: its age is unknown
        if isinstance(line.get("job"), str) and isinstance(line.get("ranks"), list):
            by_job.setdefault(line["job"], []).append(line)
    fresh = {job: told for job, told in by_job.items() if now - float(told[-1]["time"]) <= _OLD_S}
    jobs = tuple(_job(job, told) for job, told in sorted(fresh.items()))
    return Snapshot(now, short(host, 40), SOURCE, jobs, counters)


def _job(job: str, told: list[dict[str, Any]]) -> JobNow:
    """Build the state of a job from its lines of the black box, oldest first."""
    last = told[-1]
    said = last.get("troubles")
    troubles = [clean(str(one), 20) for one in said] if isinstance(said, list) else []
    named = clean(str(last.get("named") or ""), 300)
    usual_s = _number(last.get("usual_s"))
    late_s = max(SILENT_S, limits.STEPS_LEAST * (usual_s or 0.0))  # same threshold as the service's
    rows = [row for row in last["ranks"] if isinstance(row, dict) and isinstance(row.get("rank"), int)]
    ranks = tuple(_rank(row, late_s) for row in rows)
    return JobNow(
        title=short(str(last.get("title") or job), 60),
        ranks=ranks,
        steps_s=_steps(told),
        usual_s=usual_s,
        status="fault" if troubles else "",
        suspects=(SuspectNow(named),) if named else (),
        remark=f"{', '.join(troubles)}; nobody is named for it yet" if troubles and not named else "",
    )


def _steps(told: list[dict[str, Any]]) -> tuple[float, ...]:
    """Steps of the first rank, which represents all ranks of a synchronous job."""
    found: list[float] = []
    for line in told:
        first = next((row for row in line["ranks"] if isinstance(row, dict)), {})
        found += _numbers(first.get("steps_s"))
    return tuple(found[-_STEPS:])


def _rank(row: dict[str, Any], late_s: float) -> RankNow:
    """Build the state of a rank from its row in the latest line; silent from `late_s` seconds without a step on."""
    steps = sorted(_numbers(row.get("steps_s")))
    step_s = steps[len(steps) // 2] if steps else None
    waited, silent_s = _number(row.get("waited")), _number(row.get("silent_s")) or 0.0
    parts = [0.0] * len(PARTS)
    if waited is not None:
        parts[OWN], parts[OTHERS] = max(1 - waited, 0.0), min(waited, 1.0)
    state = "stopped" if row.get("stopped") else ""
    if not state and not steps and silent_s >= late_s:
        state = f"silent for {seconds(silent_s)}"
    return RankNow(row["rank"], step_s=step_s, parts=tuple(parts) if waited is not None else (), state=state)


def _numbers(values: object) -> list[float]:
    """Return the finite numbers in a list; [] for any other value."""
    return [value for each in values if (value := _number(each)) is not None] if isinstance(values, list) else []


def _number(value: object) -> float | None:
    """Return a finite number as float; None for any other value."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
