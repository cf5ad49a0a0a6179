"""Select the lines of evidence to show of a suspect: the strongest reasons first; all of them with -v.

A reason is worth a line on a terminal where it shows a difference: a value unlike the peers', not
zero, and not small beside what the suspect costs. What is equal to the peers is no reason; a line
that says so by itself is under "ruled out".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.verdict.contract import AGAINST, BECAUSE, LIMIT, RULED_OUT, Evidence, Suspect

ALIKE = 0.05  # share of the larger of two values by which they may differ and read as the same
LITTLE = 0.05  # share of what a suspect costs below which seconds are no reason for it
HALF = 0.5  # share of it from which another cause is worth a line against it
PERCENT = 1.0  # a share of less is no reason
AGAINST_SHOWN = 2
_COUNTERS = ("nvml", "sysfs", "counters", "cgroup", "host", "tcp", "qdisc", "disk", "nccl ras", "config space")


@dataclass(frozen=True, slots=True)
class Reasons:
    """Evidence by what it is: for the suspect, ruled out, limits, and against it."""

    because: tuple[Evidence, ...]
    ruled_out: tuple[Evidence, ...]
    limits: tuple[Evidence, ...]
    against: tuple[Evidence, ...]


def reasons_of(suspect: Suspect, whole: bool = False) -> Reasons:
    """Select a suspect's evidence to show on a terminal; all of it if `whole`."""
    against = [one for one in suspect.evidence if is_against(one)]
    rest = [one for one in suspect.evidence if not is_against(one)]
    ruled_out = tuple(one for one in rest if one.role == RULED_OUT)
    limits = tuple(one for one in rest if _is_limit(one))
    because = [one for one in rest if one.role != RULED_OUT and not _is_limit(one)]
    if whole:
        return Reasons(tuple(because), ruled_out, limits, tuple(against))
    told = _different([one for one in because if one.role == BECAUSE and is_telling(one, suspect)])
    least = HALF * suspect.lost_seconds_per_step
    strong = [one for one in against if not (_is_per_step(one) and _number(one.value) < least)]
    return Reasons(
        tuple(told[: budgets.REASONS] or because[:1]), ruled_out[:1], limits[:1], tuple(strong[:AGAINST_SHOWN])
    )


def is_against(evidence: Evidence) -> bool:
    """Whether a line of evidence speaks against the suspect."""
    return evidence.source.startswith(AGAINST)


def has_counter(suspect: Suspect) -> bool:
    """Whether a counter of hardware or of the kernel is among the reasons."""
    return any(one.source in _COUNTERS and is_telling(one, suspect) for one in suspect.evidence if one.role == BECAUSE)


def is_telling(evidence: Evidence, suspect: Suspect) -> bool:
    """Whether a line of evidence shows a difference that matters."""
    if isinstance(evidence.value, str):
        return evidence.value != evidence.expected
    value, expected = float(evidence.value), evidence.expected
    beside = _number(expected)
    if expected is not None and evidence.peers and abs(value - beside) <= ALIKE * max(abs(value), abs(beside)):
        return False
    if value == 0 and beside == 0:
        return False
    if evidence.unit.startswith("%") and max(value, beside) < PERCENT:
        return False
    return not (_is_per_step(evidence) and max(value, beside) < LITTLE * suspect.lost_seconds_per_step)


def _is_limit(evidence: Evidence) -> bool:
    """Whether its value is itself a limit; a value that has a limit as `expected` is a reason."""
    return evidence.role == LIMIT and evidence.expected is None


def _is_per_step(evidence: Evidence) -> bool:
    """Whether its value is a number of seconds per step."""
    return evidence.unit == "s/step" and not isinstance(evidence.value, str)


def _number(value: float | str | None) -> float:
    """Return the value as a number; 0.0 for text and None."""
    return 0.0 if value is None or isinstance(value, str) else float(value)


def _different(told: Sequence[Evidence]) -> list[Evidence]:
    """Drop lines that repeat another one from another source."""
    return list({(one.measure, one.value): one for one in reversed(told)}.values())[::-1]
