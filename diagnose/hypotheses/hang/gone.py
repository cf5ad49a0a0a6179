"""Ranks that had ended before anybody looked, while the others wait for them for ever.

gone(r)  =  the launcher of r's siblings started it on a host with a window, it is no process there, and no process may become it: the
            census says so (observer/census/rules/gone.py), or NCCL, which gets no answer of it

Convicts: the others wait in a collective, or, where nobody knows what it is, each of them in one place through all of the window. Acquits:
as many are gone as are left, and nobody is seen in a collective: at the end of a job one may stay for a while, and waits for a server.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose.fleet.model import Fleet, Gone
from rankscope.diagnose.hypotheses.hypothesis import CONVICTED, Hypothesis
from rankscope.diagnose.text import rank_list
from rankscope.diagnose.verdict.contract import Evidence


def gone_before(fleet: Fleet, waiting: Sequence[Evidence]) -> tuple[Hypothesis, ...]:
    """One hypothesis for each host of ranks that nobody saw. `waiting`: what the others do."""
    row_of = {int(number): row for row, number in enumerate(fleet.ranks.number)}
    by_host: dict[str, list[Gone]] = {}
    for each in fleet.gone:
        by_host.setdefault(each.host, []).append(each)
    return tuple(
        _hypothesis(host, gone, [row_of[each.number] for each in gone], waiting) for host, gone in by_host.items()
    )


def most_are_left(fleet: Fleet) -> bool:
    """Whether more ranks are there than are gone."""
    return bool(2 * np.count_nonzero(fleet.ranks.seen) > len(fleet.ranks))


def _hypothesis(host: str, gone: list[Gone], rows: list[int], waiting: Sequence[Evidence]) -> Hypothesis:
    who = rank_list(tuple(each.number for each in gone))
    evidence = []
    if any(each.by_census for each in gone):
        evidence.append(
            Evidence("process", f"processes of {who}, whose launcher started more there", 0.0, float(len(gone)), "")
        )
    evidence += [
        Evidence("nccl ras", f"no answer of rank {each.number} in {each.communicator}", 1.0, 0.0, "")
        for each in gone
        if each.communicator
    ]
    return Hypothesis(
        component="process",
        cause="exited",
        rows=tuple(rows),
        lost_s=float("nan"),
        support=CONVICTED,
        evidence=(*evidence, *waiting),
        action=f"See the log of {who} on {host}, and `dmesg -T` there: it ended before the window, and the others wait for it.",
        host=host,
    )
