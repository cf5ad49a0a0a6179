"""Three ranks of one role, two of them slow, each for a reason of its own.

The median of two peers is their mean: of two slow ranks each hides half of what the other is slower. So where one of three is odd, the
two others are compared with each other; where one of these is odd as well, and the third waits for it, both are compared with the
third alone. Two peers more, and the median does all this by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from rankscope.diagnose.model.excess import Differences, odd_ones
from rankscope.probes.arrays import Bools, Floats, Ints

Compare = Callable[[Ints], Differences]


def second_of_three(
    found: Differences, odd: Bools, roles: Ints, compare: Compare, waited: Callable[[Ints, Differences], Floats]
) -> tuple[Differences, Bools]:
    """The differences and the odd ranks, with the second of every role of three whose first is odd.

    `compare`: differences of these ranks (rows) among themselves; `waited`: seconds per step for which these wait for each of them.
    """
    odd = odd.copy()
    for role in np.unique(roles[odd]):
        members = np.flatnonzero(roles == role)
        slow, rest = members[odd[members]], members[~odd[members]]
        if len(members) != 3 or len(rest) == 0:
            continue
        if len(rest) == 2:
            beside = compare(rest)
            second = odd_ones(beside) & (waited(rest, beside) >= 0.5 * beside.excess_s)
            if not second.any():
                continue
            slow, rest = np.append(slow, rest[second]), rest[~second]
            odd[slow] = True
        for row in slow:
            found = _taken(found, int(row), compare(np.append(row, rest)))
    return found, odd


def _taken(found: Differences, row: int, alone: Differences) -> Differences:
    """`found` with one rank's entries from `alone`, whose first rank it is."""

    def entry(name: str) -> Any:  # floats, or counts
        values = getattr(found, name).copy()
        values[row] = getattr(alone, name)[0]
        return values

    return replace(found, **{each.name: entry(each.name) for each in fields(found)})
