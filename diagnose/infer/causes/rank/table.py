"""Collect all hypotheses on one rank's excess; each file of this folder proposes for one component."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.registry import proposers, registered
from rankscope.diagnose.infer.verdict.function import Function


def charges(case: Case) -> tuple[Hypothesis, ...]:
    """Return all hypotheses on one rank's excess, the strongest first.

    Strength: seconds per step explained times support (0.99 where a counter moved on the same
    component, 0.75 where none did). Equal growth of all functions is also the effect of a CPU that
    others take: where components confirmed by a counter, or pages of memory (memory.py), explain
    half of the excess, their seconds are subtracted from workload. A hypothesis that another one
    `refines` is dropped.
    """
    made: list[Hypothesis] = []
    for propose in proposers(Case):
        each: Iterable[Hypothesis] = propose(case)
        made += each
    found = _joined(_without_refined(made))
    convicted = max((c.lost_s for c in found if _acquits_workload(c)), default=0.0)
    if convicted >= limits.HOLDS_LEAST * case.excess_s:
        found = [replace(c, lost_s=c.lost_s - convicted) if c.component == "workload" else c for c in found]
    found = [charge for charge in found if charge.lost_s > 0]
    return tuple(sorted(found, key=lambda charge: -charge.lost_s * charge.support))


def _acquits_workload(charge: Hypothesis) -> bool:
    """Return whether a counter or page faults show that a component other than workload is the reason."""
    return charge.component != "workload" and (charge.support >= CONVICTED or charge.cause == "page-faults")


def _without_refined(found: list[Hypothesis]) -> list[Hypothesis]:
    """Drop hypotheses that another one refines: it gives their cause and covers half of their time."""
    reasons = [(refines, one.lost_s) for one in found if (refines := _refines(one))]
    return [
        one
        for one in found
        if not any(
            f"{one.component}/{one.cause}" in refines and lost_s >= limits.HOLDS_LEAST * one.lost_s
            for refines, lost_s in reasons
        )
    ]


def _refines(found: Hypothesis) -> frozenset[str]:
    """Return the causes ('python/lock') that the hypothesis's cause is registered to explain; empty without any."""
    known = registered(found.component, found.cause, found.scope)
    return known.refines if known is not None else frozenset()


def _joined(found: list[Hypothesis]) -> list[Hypothesis]:
    """Merge hypotheses on the same component and function into one, with the cause that took most.

    Their seconds are added: a function may be waited for and take the CPU as well.
    """
    joined = list[Hypothesis]()
    for charge in sorted(found, key=lambda charge: -charge.lost_s):
        same = [at for at, each in enumerate(joined) if charge.function and _of_function(each) == _of_function(charge)]
        if not same:
            joined.append(charge)
            continue
        first = joined[same[0]]
        evidence = (*first.evidence, *(each for each in charge.evidence if each not in first.evidence))
        joined[same[0]] = replace(first, lost_s=first.lost_s + charge.lost_s, evidence=evidence)
    return joined


def _of_function(charge: Hypothesis) -> tuple[str, Function | None]:
    """Return (component, function), the key by which hypotheses are merged."""
    return charge.component, charge.function
