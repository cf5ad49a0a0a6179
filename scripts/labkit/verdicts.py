"""Comparing a verdict (rankscope.verdict/1) with the truth. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    instance: str
    said: str
    confidence: float = 0.0
    lost_s: float = 0.0  # seconds of each step
    lost_percent: float = 0.0
    waste: bool = False  # time that need not be spent; nobody differs by it

    def __str__(self) -> str:
        where = f" ranks {','.join(map(str, self.ranks))}" if self.ranks else f" {self.host}"
        part = f" {self.instance}" if self.instance else ""
        return f"{self.component}/{self.cause}{where}{part}" + (f" {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    status: str
    suspects: tuple[Suspect, ...]

    @property
    def accuses(self) -> bool:
        """Whether somebody is said to be guilty; `imbalance` says that nobody is."""
        return bool(self.suspects) and self.status in {"fault", "hang"}

    @property
    def without_waste(self) -> Verdict:
        """What it says of who differs: waste blames nobody, and an inefficient job is healthy by this."""
        status = "healthy" if self.status == "inefficient" else self.status
        return replace(self, status=status, suspects=tuple(one for one in self.suspects if not one.waste))


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
        instance=str(item.get("instance") or ""),
        said=json.dumps(item),
        confidence=float(item.get("confidence") or 0.0),
        lost_s=float(item.get("lost_seconds_per_step") or 0.0),
        lost_percent=float(item.get("lost_percent") or 0.0),
        waste=bool(item.get("waste")),
    )


def names(suspect: Suspect, truth: Truth) -> bool:
    """Whether a suspect is the truth, or one of the answers that are as good."""
    return any(_names(suspect, answer) for answer in (truth, *truth.alternatives))


def _names(suspect: Suspect, truth: Truth) -> bool:
    """Component, ranks, for Python the function, and what else the truth asks for."""
    if suspect.component not in truth.causes:
        return False
    if truth.exact and suspect.cause not in truth.causes[suspect.component]:
        return False
    # What follows a name does not matter: "gpu2 by eval-server (4711)" names gpu2, "gpu21" does not.
    if truth.instances and not any(
        re.match(rf"{re.escape(one)}(?![\w.])", suspect.instance) for one in truth.instances
    ):
        return False
    if truth.everyone:
        if suspect.ranks and suspect.ranks != truth.ranks:
            return False
    elif truth.whole_host:
        if not (suspect.ranks and set(suspect.ranks) <= set(truth.ranks)):
            return False
    elif suspect.ranks != truth.ranks:
        return False
    # A method may be given with its class: Metrics.log_metrics.
    return truth.function is None or (suspect.function or "").rsplit(".", 1)[-1] == truth.function


def score(verdict: Verdict, truth: Truth) -> str:
    """How the case ended: FIRST, IN_THREE, WRONG or SILENT.

    Of two culprits at once both must be named: by the first two suspects (FIRST), or by the first three. Where one is named
    and the other is not, and nobody else comes before, it is SILENT about the other. Waste is compared with the truth only where
    the truth is waste.
    """
    if truth.status == "inefficient":
        return _score_waste(verdict, truth)
    verdict = verdict.without_waste
    if truth.status == "healthy":
        if verdict.suspects or verdict.status in {"fault", "hang"}:
            return WRONG
        return FIRST if verdict.status == "healthy" else SILENT
    if truth.status == "imbalance":
        if verdict.accuses:
            return WRONG
        return FIRST if verdict.status == "imbalance" else SILENT
    if not verdict.suspects:
        return SILENT
    culprits = _culprits(truth)
    # A hang is not a slow-down: a rank that is stopped is right only where the status says so.
    if _all_named(verdict.suspects[: len(culprits)], culprits) and (truth.status != "hang" or verdict.status == "hang"):
        return FIRST
    if _all_named(verdict.suspects[:3], culprits):
        return IN_THREE
    return SILENT if truth.also and first_is_right(verdict, truth) else WRONG


def _score_waste(verdict: Verdict, truth: Truth) -> str:
    """Compare the waste that a verdict tells with a truth that is waste; a rank that differs is WRONG."""
    if len(verdict.without_waste.suspects):
        return WRONG
    found = [names(one, truth) for one in verdict.suspects[:3]]
    return FIRST if found[:1] == [True] else IN_THREE if any(found) else WRONG if found else SILENT


def _culprits(truth: Truth) -> tuple[Truth, ...]:
    """All of them; each may be named alone, or with those who do the same, as one suspect of all their ranks."""
    found = (truth, *truth.also)
    result = []
    for one in found:
        alike = {
            rank
            for other in found
            if (other.causes, other.function) == (one.causes, one.function)
            for rank in other.ranks
        }
        together = replace(one, ranks=tuple(sorted(alike)))
        result.append(replace(one, alternatives=(*one.alternatives, together), also=()))
    return tuple(result)


def _all_named(suspects: Sequence[Suspect], culprits: Sequence[Truth]) -> bool:
    return all(any(names(suspect, culprit) for suspect in suspects) for culprit in culprits)


def first_is_right(verdict: Verdict, truth: Truth) -> bool:
    """Whether the verdict accuses, and its first suspect is a culprit: what precision and calibration count."""
    guilty = truth.status in {"fault", "hang"}
    return guilty and verdict.accuses and any(names(verdict.suspects[0], culprit) for culprit in _culprits(truth))


def cause_is_right(verdict: Verdict, truth: Truth) -> bool:
    """Whether the first suspect's cause is one of the right names, beside its component."""
    if not verdict.suspects:
        return False
    first = verdict.suspects[0]
    answers = [answer for culprit in (truth, *truth.also) for answer in (culprit, *culprit.alternatives)]
    return any(first.cause in answer.causes.get(first.component, ()) for answer in answers)


def culprit_is_named(verdict: Verdict, truth: Truth) -> bool:
    """Whether the first suspect mentions the truth's culprit (a process's name, an interface) anywhere."""
    return bool(verdict.suspects and truth.culprit and truth.culprit in verdict.suspects[0].said)
