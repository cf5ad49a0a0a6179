"""The verdict as JSON, schema `rankscope.verdict/1`: ISO 8601 times in UTC, seconds, null for
unknown."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import Any

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.verdict import stack_tree
from rankscope.diagnose.infer.verdict.advice import action_of
from rankscope.diagnose.infer.verdict.budget import IN_WORDS, Budget, Item, Part
from rankscope.diagnose.infer.verdict.contract import AGAINST, Baseline, Evidence, Instance, Suspect, Verdict
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.sentence import accusation_of, summary_of
from rankscope.diagnose.text import clean, clean_all

VERDICT_SCHEMA = "rankscope.verdict/1"


def to_json(verdict: Verdict, *others: Verdict) -> str:
    """Format the verdict as indented, strictly valid JSON: no NaN, no control characters from
    targets.

    `others`: verdicts on other jobs in the same windows, added as `other_jobs` if there are any."""
    found = _verdict(verdict)
    if others:
        found["other_jobs"] = [_verdict(other) for other in others]
    return json.dumps(clean_all(found), indent=2, allow_nan=False, ensure_ascii=False)


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """Convert one verdict to JSON data, with summary and action in words."""
    steps = verdict.step_seconds
    found: dict[str, Any] = {
        "schema": VERDICT_SCHEMA,
        "status": verdict.status,
        "summary": clean(summary_of(verdict), budgets.NOTE_MOST),
        "action": clean(action_of(verdict), 400),
        "job": clean(verdict.job),
        "title": clean(verdict.title),
        "hosts": [clean(host) for host in verdict.hosts],
        "ranks": list(verdict.ranks),
        "window": {"start": timestamp(verdict.start), "end": timestamp(verdict.end)},
        "baseline": _baseline(verdict.baseline),
        "steps": verdict.steps,
        "step_seconds": {
            "p50": _number(steps.p50),
            "p99": _number(steps.p99),
            "baseline_p50": _number(steps.baseline_p50),
        },
        "slowdown_percent": _number(verdict.slowdown_percent, 2),
        "budget": _budget(verdict.budget),
        "suspects": [_suspect(suspect, verdict.guessed) for suspect in verdict.suspects],
        "notes": [clean(note.text, budgets.NOTE_MOST) for note in verdict.notes],
        "note_codes": [note.code.value for note in verdict.notes],
    }
    if verdict.stacks is not None:  # only for a hang
        found["stacks"] = stack_tree.as_json(verdict.stacks)
    return found


def _baseline(baseline: Baseline | None) -> dict[str, Any] | None:
    """Convert what the verdict was compared with; None without a baseline."""
    if baseline is None:
        return None
    return {
        "windows": baseline.windows,
        "ranks": baseline.ranks,
        "start": timestamp(baseline.start),
        "end": timestamp(baseline.end),
        "step_p50": _number(baseline.step_p50),
        "source": baseline.source,
        "used": [clean(name) for name in baseline.used],
    }


def _suspect(suspect: Suspect, guessed: tuple[int, ...]) -> dict[str, Any]:
    """Convert a suspect, with its sentence; `guessed`: rank numbers that are guesses."""
    return {
        "component": suspect.component,
        "cause": suspect.cause,
        "scope": suspect.scope,
        "sentence": clean(accusation_of(suspect, guessed), budgets.NOTE_MOST),
        "sure": suspect.sure,
        "waste": suspect.waste,
        "host": clean(suspect.host),
        "instance": clean(suspect.instance),
        "instances": [_instance(one) for one in suspect.instances[: budgets.INSTANCES_SHOWN]],
        "ranks": list(suspect.ranks),
        "function": _function(suspect.function),
        "lost_seconds_per_step": _number(suspect.lost_seconds_per_step),
        "lost_percent": _number(suspect.lost_percent, 2),
        "confidence": _number(suspect.confidence, 2),
        "since": None if suspect.since is None else timestamp(suspect.since),
        "evidence": [_evidence(evidence) for evidence in suspect.evidence],
        "action": clean(suspect.action, 400),
    }


def _instance(instance: Instance) -> dict[str, Any]:
    """Convert a device and the process that uses it; null for an unknown process."""
    return {
        "name": clean(instance.name),
        "process": clean(instance.comm) or None,
        "pid": instance.pid if instance.pid >= 0 else None,
    }


def _function(function: Function | None) -> dict[str, Any] | None:
    """Convert a function; None without one."""
    if function is None:
        return None
    return {
        "kind": clean(function.kind),
        "name": clean(function.name),
        "file": clean(function.file, 400),
        "line": function.line,
    }


def _budget(budget: Budget | None) -> dict[str, Any] | None:
    """Convert the budget; None without one. Stages only where there are any."""
    if budget is None:
        return None
    found: dict[str, Any] = {
        "of": "window" if budget.of_window else "step",
        "seconds": _number(budget.seconds),
        "ranks": budget.ranks,
        "parts": [_part(budget, part) for part in budget.parts],
        "by_rank": [
            {
                "rank": one.rank,
                "seconds": _number(one.seconds),
                "parts": {kind.value: _number(seconds) for kind, seconds in one.parts},
            }
            for one in budget.by_rank
        ],
    }
    if budget.stages:  # only for runs in which ranks ask servers
        whole_s = max(sum(stage.seconds for stage in budget.stages), 1e-9)
        found["stages"] = [
            {
                "function": _function(stage.function),
                "seconds": _number(stage.seconds),
                "share": _number(stage.seconds / whole_s, 4),
            }
            for stage in budget.stages
        ]
    return found


def _part(budget: Budget, part: Part) -> dict[str, Any]:
    """Convert one kind of activity of the budget, with its items; shares are 0..1."""
    found: dict[str, Any] = {
        "kind": part.kind.value,
        "words": IN_WORDS[part.kind],
        "seconds": _number(part.seconds),
        "share": _number(budget.share(part.seconds), 4),
        "items": [_item(budget, item) for item in part.items],
    }
    if part.meanwhile:
        found["workers"] = [_item(budget, item) for item in part.meanwhile]
    return found


def _item(budget: Budget, item: Item) -> dict[str, Any]:
    """Convert one item of the budget; its share is of the whole budget, 0..1."""
    return {
        "what": clean(item.what),
        "function": _function(item.function),
        "seconds": _number(item.seconds),
        "share": _number(budget.share(item.seconds), 4),
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    """Convert a line of evidence; `role` is 'against' where it speaks against the suspect."""
    return {
        "source": clean(evidence.source),
        "measure": clean(evidence.measure),
        "value": _value(evidence.value),
        "expected": _value(evidence.expected),
        "unit": clean(evidence.unit),
        "peers": evidence.peers,
        "role": "against" if evidence.source.startswith(AGAINST) else evidence.role,
    }


def _value(value: float | str | None) -> float | str | None:
    """Convert a value of evidence: clean text, a rounded number, or None if unknown."""
    return clean(value, 400) if isinstance(value, str) else _number(value)


def _number(value: float | None, digits: int = 6) -> float | None:
    """Round a number to `digits` decimals; None if it is unknown or not finite."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


def timestamp(unix: float) -> str | None:
    """Format Unix time as ISO 8601 in UTC with milliseconds; None for an invalid date."""
    try:
        return datetime.fromtimestamp(unix, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None
