"""What rankscope said of a job, compared with what the job printed. Pure, but for reading the source of a program."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit import verdicts
from labkit.faults.base import Truth
from labkit.jobs import lines
from labkit.jobs.cases import Ranks, Result
from labkit.jobs.lines import Line


def ranks_of(printed: str, pids: dict[int, int], members: set[int], there: int) -> Ranks:
    """`rankscope ranks --json` against the job's own rank → pid; members: all processes of the job."""
    try:
        seen = {item["pid"]: item["rank"] for item in json.loads(printed)["ranks"] if item["pid"] in members}
    except (ValueError, KeyError, TypeError):
        return Ranks(there, 0)
    true = {pid: rank for rank, pid in pids.items()}
    right = sum(true.get(pid) == rank for pid, rank in seen.items())
    known = sum(pid in true for pid in seen)
    return Ranks(there, right, wrong=known - right, extra=len(seen) - known)


def ranks_before_training(listed: str, members: set[int], there: int) -> Ranks:
    """Where no line is printed yet: the numbers that were seen, once each, are what can be checked."""
    try:
        seen = [item["rank"] for item in json.loads(listed)["ranks"] if item["pid"] in members]
    except (ValueError, KeyError, TypeError):
        seen = []
    right = len(set(seen) & set(range(there)))
    return Ranks(there, right, extra=len(seen) - right)


def reasons(listed: str) -> str:
    """Why processes were rejected, as `rankscope ranks --json` tells it."""
    try:
        found = json.loads(listed)
        told = [str(item.get("reason", item)) if isinstance(item, dict) else str(item) for item in found["rejected"]]
        return "; ".join(dict.fromkeys([*told, *map(str, found["notes"])]))[:300] or "no reason given"
    except (ValueError, KeyError, TypeError):
        return listed[:200]


def job_names(printed: str, members: set[int]) -> tuple[list[str], bool]:
    """Names of jobs with ranks among the members, the most frequent first, and whether there are others on this host."""
    try:
        found = json.loads(printed)["ranks"]
    except (ValueError, KeyError, TypeError):
        return [], False
    ours = [item["job"] for item in found if item["pid"] in members]
    return sorted(set(ours), key=ours.count, reverse=True), len(ours) < len(found)


def window_of(verdict: str) -> tuple[float, float] | None:
    """Beginning and end of the window on CLOCK_REALTIME, seconds."""
    try:
        window = json.loads(verdict)["window"]
        return _instant(window["start"]), _instant(window["end"])
    except (ValueError, KeyError, TypeError):
        return None


def _instant(value: Any) -> float:
    if isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    return float(value)


def ended_in_window(verdict: str, of_rank: list[Line]) -> bool:
    """Whether the last line of a rank lies in the window; yes, where there is no window to tell."""
    window = window_of(verdict)
    return window is None or bool(of_rank and window[0] < of_rank[-1].wall < window[1])


def seen_step_s(verdict: str) -> float | None:
    try:
        p50 = json.loads(verdict)["step_seconds"]["p50"]
        return None if p50 is None else float(p50)
    except (ValueError, KeyError, TypeError):
        return None


def span_of(program: Path, function: str) -> tuple[int, int] | None:
    """First and last line of a function of a program; Python says that it begins with its decorators."""
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return begin, node.end_lineno or node.lineno
    return None


def line_is_right(verdict: str, program: Path, function: str) -> bool:
    """Whether the first suspect's function is placed in that program, on a line of that function."""
    span = span_of(program, function)
    try:
        place = json.loads(verdict)["suspects"][0]["function"]
        return (
            span is not None and Path(place["file"]).name == program.name and span[0] <= int(place["line"]) <= span[1]
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return False


def outcome_of(verdict: verdicts.Verdict, truth: Truth) -> str:
    """As verdicts.score; for a job that has not begun to train, anything but an accusation or `healthy` is right."""
    if truth.status == "unknown":
        return verdicts.WRONG if verdict.accuses or verdict.status in ("healthy", "inefficient") else verdicts.FIRST
    return verdicts.score(verdict, truth)


def judged(result: Result, printed: list[list[Line]], program: Path) -> Result:
    """The result with its verdict compared with the truth and the job's own lines."""
    assert result.truth is not None
    try:
        verdict = verdicts.parse(result.verdict)
    except verdicts.BadVerdict as error:
        return replace(result, outcome=verdicts.FAILED, said=f"no verdict: {error}")
    window = window_of(result.verdict)
    outcome = outcome_of(verdict, result.truth)
    function = result.truth.function
    named = verdict.suspects[0].function if verdict.suspects else None
    line_right = None
    if outcome == verdicts.FIRST and function and (named or "").rsplit(".", 1)[-1] == function:
        line_right = line_is_right(result.verdict, program, function)
        outcome = outcome if line_right else verdicts.WRONG
    status = verdict.status
    return replace(
        result,
        outcome=outcome,
        said=f"{status}: " + ("; ".join(map(str, verdict.suspects[:3])) or "nobody"),
        job_s=lines.median_step_s(lines.between(printed, *window)) if window else None,
        seen_s=seen_step_s(result.verdict),
        line_right=line_right,
        sound=all(map(lines.numbering_is_sound, printed)),
    )
