"""Find the ranks that work in a pause while the others wait for them. Pure.

A rank's own time is its steps without waiting. In a pause of the job it works if its own time
exceeds the usual by half of the pause or more (the culprit waits least).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from rankscope.diagnose import limits
from rankscope.diagnose.service.ledger.entry import UNKNOWN, Whose, scope_of
from rankscope.diagnose.service.ledger.pace import LongSteps
from rankscope.observer.watch.ranks import RankPulse

_ROWS_MOST = 48  # of a rank's last steps
_ROWS_LEAST = 5


def find(ranks: Sequence[RankPulse], pause: LongSteps) -> Whose:
    """Return the ranks of this host that work in a pause that has just ended; UNKNOWN if no rank's waiting is measured."""
    working, known = [], 0
    for one in ranks:
        more_s = _own_excess_s(one, pause)
        if more_s is None:
            continue
        known += 1
        if more_s >= limits.HOLDS_LEAST * pause.excess_s:
            working.append(one.found.identity.rank)
    if not known:
        return UNKNOWN
    return scope_of(tuple(sorted(working)), known)


def _own_excess_s(rank: RankPulse, pause: LongSteps) -> float | None:
    """Return the seconds by which a rank's own time exceeds the usual in a pause; None if unknown."""
    usual: list[float] = []
    inside: list[float] = []
    for end_s, seconds, waited_s in islice(reversed(rank.recent), _ROWS_MOST):
        own_s = seconds - waited_s
        if math.isnan(own_s):
            return None
        # Its steps and those of the job's first rank end within one usual step of each other.
        middle_s = end_s - min(seconds, pause.end_s - pause.begin_s) / 2
        (inside if pause.begin_s < middle_s <= pause.end_s else usual).append(own_s)
    if len(usual) < _ROWS_LEAST or not inside:
        return None
    usual.sort()
    return sum(inside) - len(inside) * usual[len(usual) // 2]
