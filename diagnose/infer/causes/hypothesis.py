"""Hypotheses (what may have taken time), and their conversion to suspects of the verdict.

Every mechanism, of a rank, a link, the whole job or a hang, reports what it found as a
`Hypothesis`. Admitted hypotheses become suspects in `suspect_from`, the only function that makes a
`Suspect`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.registry import registered, sentence
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import GUESSED, LIKELY, WITHOUT, WITNESSED, Evidence, Instance, Suspect
from rankscope.diagnose.infer.verdict.function import Function

# Support: the probability that evidence of this kind is right; a factor of the confidence.
SCORE_LEAST, SCORE_MOST = limits.EFFECT_SHARE, 1 - limits.NOTHING  # nothing is certain
ORDERED = 1 - limits.NOTHING**2  # the kernel kept the rank off its CPU (quota, interrupts) and counts the time
CONVICTED = SCORE_MOST  # a counter on the same component says why
SEEN = 0.9  # the function itself is the evidence: nothing else is needed
REPORTED = SEEN  # a counter moved on the component; its cost cannot be computed
NO_COUNTER = 0.75  # the behaviour fits, no counter says why
GUESS = 0.5
EXCUSED = 1 - NO_COUNTER  # a counter says that something else is the cause
ALIKE = 0.0  # a counter or the peers rule this cause out, without another cause

DESIGNED = ("stage-imbalance", "data-imbalance", "uneven-generation")  # imbalance by design, not a fault


def log_odds(support: float) -> float:
    """ln(s / (1 - s)) in nats, s the support, capped at 0.99 unless it is `ORDERED`; -inf for 0."""
    s = support if support == ORDERED else min(support, SCORE_MOST)
    return math.log(s / (1 - s)) if s > 0 else -math.inf


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A component that may have taken `lost_s` seconds of each step from these ranks (rows of fleet.ranks).

    `lost_s` is NaN where a counter moved and what it costs cannot be computed.
    """

    component: str
    cause: str
    rows: tuple[int, ...]
    lost_s: float
    support: float
    evidence: tuple[Evidence, ...]
    action: str = ""  # '' where the action registered for the cause is enough
    host: str = ""
    instance: str = ""
    comm: str = ""  # the process that uses the instance; '' where no process is a suspect
    pid: int = -1
    function: Function | None = None
    computing_s: float = 0.0  # part of lost_s: growth of computing Python functions, not counted again
    ratio: float = float("nan")  # of a link: its rate over that of its peers
    clear: float = 1.0  # of a link, 0..1: the certainty that it is slow at all
    scope: str = "rank"  # one of verdict.contract.SCOPES
    since: float | None = None  # Unix time at which it began, if known
    says: str = ""  # the sentence for readers, where the one that is registered for the cause is not enough


def with_gain(found: Hypothesis, step_s: float) -> Hypothesis:
    """Return the hypothesis with a line of evidence added: the mean step (`step_s` seconds), and that less `lost_s`."""
    without_s = max(step_s - found.lost_s, 0.0)
    told = Evidence(
        "steps", "mean step as it was, and as it would be without this", step_s, without_s, "s", role=WITHOUT
    )
    return replace(found, evidence=(*found.evidence, told))


def suspect_from(
    fleet: Fleet, found: Hypothesis, of_s: float | None, score: float, instances: tuple[Instance, ...] | None = None
) -> Suspect:
    """Convert an admitted hypothesis to a suspect of the verdict.

    lost_percent = 100 · lost_s / of_s; confidence = score, clipped to [SCORE_LEAST, SCORE_MOST].

    `of_s`: the step length, in seconds, that the time was lost from; None in a hang, where all of
        it is lost (100 %).
    `instances`: those of all merged hypotheses; None: the hypothesis's own.
    Raises AssertionError for a cause that is not registered.
    """
    known = registered(found.component, found.cause, found.scope)
    if known is None:
        raise AssertionError(f"{found.component}/{found.cause} ({found.scope}) is not registered (registry.py)")
    return Suspect(
        component=found.component,
        cause=found.cause,
        host=found.host,
        instances=instances_of(found) if instances is None else instances,
        ranks=tuple(sorted(int(fleet.ranks.number[row]) for row in found.rows)),
        function=found.function,
        lost_seconds_per_step=found.lost_s,
        lost_percent=100.0 if of_s is None else 100 * found.lost_s / of_s,
        confidence=float(np.clip(score, SCORE_LEAST, SCORE_MOST)),
        sure=sureness(found.support),
        since=found.since,
        evidence=once(found.evidence),
        action=found.action or known.action,
        scope=found.scope,
        still=of_s is None,
        says=found.says or sentence(found.component, found.cause, found.scope),
    )


def sureness(support: float) -> str:
    """Return WITNESSED for a support of at least 0.99 (CONVICTED), GUESSED for at most 0.5 (GUESS), else LIKELY."""
    return WITNESSED if support >= CONVICTED else GUESSED if support <= GUESS else LIKELY


def once(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the evidence with only the first of lines that have the same measure, value and unit."""
    found = dict[tuple[object, ...], Evidence]()
    for one in evidence:
        found.setdefault((one.measure, one.value, one.unit), one)
    return tuple(found.values())


def instances_of(found: Hypothesis) -> tuple[Instance, ...]:
    """Return the hypothesis's instance with its process as a tuple, empty without an instance."""
    return (Instance(found.instance, found.comm, found.pid),) if found.instance else ()


def common_host(fleet: Fleet, rows: Iterable[int]) -> str:
    """Return the host of these ranks (rows of fleet.ranks); '' where they are on several."""
    hosts = {fleet.ranks.host[row] for row in rows}
    return hosts.pop() if len(hosts) == 1 else ""


def machine_of(fleet: Fleet, rows: Iterable[int]) -> str:
    """Return the host of these ranks (rows), else the machine that their containers share; '' if there are several."""
    rows = tuple(rows)
    machines = {fleet.ranks.observed_on[row] for row in rows}
    return common_host(fleet, rows) or (machines.pop() if len(machines) == 1 else "")
