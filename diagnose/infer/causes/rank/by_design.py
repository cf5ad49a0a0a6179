"""Separate the part of a rank's excess that was in the baseline: an imbalance by design, not a fault.

before(r) = excess of rank r over its peers in the baseline, where it is 30 % of E, today's; else 0
rest(r)   = E - before(r)
z         = rest / √(2 σ²), σ = E / z today, since both excesses are known equally well

Where the rest is below the effect floor, or too little for the admitted hypotheses, all of E is by
design. Else both are rows: the imbalance with before / E of the excess, and the admitted hypotheses
with the rest of their parts. A rank that is compared with its own past (past/compared.py) has no
such excess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import NO_COUNTER
from rankscope.diagnose.infer.causes.rank.selection import Admitted, Selection
from rankscope.diagnose.infer.past.baseline import Reference
from rankscope.diagnose.infer.past.compared import Compared
from rankscope.diagnose.infer.verdict.contract import AGAINST, Evidence
from rankscope.diagnose.stats.student import chance, nats


@dataclass(frozen=True, slots=True)
class Part:
    """An admitted hypothesis on a rank and its part (0..1) of the rank's excess.

    `of_rest`: its part of the excess that was not there before. `before`: it is the imbalance of
        the baseline.
    """

    why: Admitted
    part: float
    of_rest: float
    before: bool = False


def with_design(among: Compared, selection: Selection, reference: Reference | None) -> list[Part]:
    """Return the admitted hypotheses on single ranks with their parts, and imbalances of the baseline."""
    found: list[Part] = []
    for row in selection.rows.tolist():
        admitted = [each for each in selection.admitted if each.row == row]
        whole = sum(each.part for each in admitted)
        before_s = 0.0 if reference is None else _before_s(among, selection, reference, row)
        if before_s <= 0:
            found += [Part(each, each.part / whole, each.part / whole) for each in admitted]
            continue
        excess_s = float(selection.differences.excess_s[row])
        told = Evidence("baseline", "excess that was there before", before_s, 0.0, "s/step")
        later = _later(selection, admitted, excess_s, before_s)
        share = min(before_s / excess_s, 1.0) if later else 1.0
        found.append(Part(_imbalance(admitted, share, told), share, share, before=True))
        against = replace(told, source=f"{AGAINST}baseline")
        for each in later:
            found.append(Part(_with(each, against), (1 - share) * each.part / whole, each.part / whole))
    return found


def _before_s(among: Compared, selection: Selection, reference: Reference, row: int) -> float:
    """Return the seconds per step of the rank's excess in the baseline; 0 below 30 % of today's."""
    if row in among.alone:
        return 0.0
    before_s = reference.excess.get(int(among.fleet.ranks.number[row]), 0.0)
    return before_s if before_s >= limits.PART * float(selection.differences.excess_s[row]) else 0.0


def _later(selection: Selection, admitted: Sequence[Admitted], excess_s: float, before_s: float) -> list[Admitted]:
    """Return the hypotheses rescored on the excess that is new; empty where that is too little."""
    differences, row = selection.differences, admitted[0].row
    rest_s = excess_s - before_s
    if rest_s < float(differences.floor_s[row]):
        return []
    z = float(differences.z[row]) * np.array([1.0, rest_s / (np.sqrt(2) * excess_s)])
    clear, less = nats(chance(z, np.full(2, differences.freedom[row])))
    scored = [replace(each, score=each.score - float(clear - less)) for each in admitted]
    return scored if max(each.score for each in scored) >= limits.SCORE_LEAST else []


def _imbalance(admitted: Sequence[Admitted], share: float, told: Evidence) -> Admitted:
    """Turn the largest of these hypotheses into an imbalance that was in the baseline.

    `share`: the part of the rank's excess that was there.
    """
    first = max(admitted, key=lambda each: each.part)
    found = replace(
        first.found,
        component="workload",
        cause="data-imbalance",
        support=min(first.found.support, NO_COUNTER),
        action="It was so in the baseline too: balance the work of the ranks, or leave it.",
        lost_s=share * first.whole_s,
    )
    return _with(replace(first, found=found, part=share, others=()), told)


def _with(each: Admitted, told: Evidence) -> Admitted:
    """Return the hypothesis with one more line of evidence."""
    return replace(each, found=replace(each.found, evidence=(*each.found.evidence, told)))
