"""Comparing a verdict (rankscope.verdict/1) with the truth. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from labkit.faults.base import Truth

# How a case can end, best first. FIRST and IN_THREE: the true culprit was the first, or among the first three suspects.
FIRST, IN_THREE, WRONG, SILENT, FAILED, IMPOSSIBLE = (
    "first",
    "in three",
    "wrong",
    "silent",
    "failed",
    "impossible",
)


@dataclass(frozen=True, slots=True)
class Suspect:
    """The part of a suspect that the lab looks at; `said` is the whole of it as text."""

    component: str
    cause: str
    ranks: tuple[int, ...]
    host: str
    function: str | None
    said: str

    def __str__(self) -> str:
        where = f" ranks {','.join(map(str, self.ranks))}" if self.ranks else f" {self.host}"
        return f"{self.component}/{self.cause}{where}" + (f" {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    status: str
    suspects: tuple[Suspect, ...]


class BadVerdict(ValueError):
    """The output of `rankscope diagnose --json` does not keep the contract."""


def parse(text: str) -> Verdict:
    """Read a verdict; BadVerdict where the text is none."""
    try:
        found = json.loads(text)
        if found["schema"] != "rankscope.verdict/1":
            raise BadVerdict(f"schema {found['schema']!r}")
        return Verdict(status=str(found["status"]), suspects=tuple(_suspect(item) for item in found["suspects"]))
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadVerdict(f"{type(error).__name__}: {error}") from None


def _suspect(item: dict[str, Any]) -> Suspect:
    function = item["function"]
    return Suspect(
        component=str(item["component"]),
        cause=str(item["cause"]),
        ranks=tuple(sorted(int(rank) for rank in item["ranks"])),
        host=str(item.get("host") or ""),
        function=str(function["name"]) if function else None,
        said=json.dumps(item),
    )


def names(suspect: Suspect, truth: Truth) -> bool:
    """Whether a suspect is the truth: component, ranks, and for Python the function."""
    if suspect.component not in truth.causes:
        return False
    if truth.whole_host:
        if not (suspect.ranks and set(suspect.ranks) <= set(truth.ranks)):
            return False
    elif suspect.ranks != truth.ranks:
        return False
    # A qualified name may carry its class: Metrics.log_metrics.
    return truth.function is None or (suspect.function or "").rsplit(".", 1)[-1] == truth.function


def score(verdict: Verdict, truth: Truth) -> str:
    """How the case ended: FIRST, IN_THREE, WRONG or SILENT."""
    if truth.status == "healthy":
        if verdict.suspects or verdict.status in {"fault", "hang"}:
            return WRONG
        return FIRST if verdict.status == "healthy" else SILENT
    if not verdict.suspects:
        return SILENT
    right = [names(suspect, truth) for suspect in verdict.suspects[:3]]
    # A hang is not a slow-down: a rank that is stopped is right only where the status says so.
    if right[0] and (truth.status != "hang" or verdict.status == "hang"):
        return FIRST
    return IN_THREE if any(right) else WRONG


def cause_is_right(verdict: Verdict, truth: Truth) -> bool:
    """Whether the first suspect's cause is one of the right names, beside its component."""
    return bool(verdict.suspects) and verdict.suspects[0].cause in truth.causes.get(verdict.suspects[0].component, ())


def culprit_is_named(verdict: Verdict, truth: Truth) -> bool:
    """Whether the first suspect mentions the truth's culprit (a process's name, an interface) anywhere."""
    return bool(verdict.suspects and truth.culprit and truth.culprit in verdict.suspects[0].said)
