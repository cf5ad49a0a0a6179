"""Ranks that had ended before anybody looked, while the others wait for them for ever.

gone(r)    =  the launcher of r's siblings started it on a host with a window, it is no process there, and no process may become it: the
              census says so (observer/census/rules/gone.py), or NCCL, which gets no answer of it
silent(r)  =  its host has no window, and NCCL gets no answer of it: it has ended, or its host has

Convicts: the others wait in a collective, or, where nobody knows what it is, each of them in one place through all of the window. Acquits:
as many are gone as are left, and nobody is seen in a collective: at the end of a job one may stay for a while, and waits for a server.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.fleet.model import Fleet, Gone
from rankscope.diagnose.hypotheses.hypothesis import CONVICTED, REPORTED, Hypothesis
from rankscope.diagnose.text import rank_list
from rankscope.diagnose.verdict.contract import Evidence


def gone_before(fleet: Fleet, waiting: Sequence[Evidence]) -> tuple[Hypothesis, ...]:
    """One hypothesis for each host of ranks that nobody saw. `waiting`: what the others do."""
    row_of = {int(number): row for row, number in enumerate(fleet.ranks.number)}
    by_host: dict[str, list[Gone]] = {}
    for each in fleet.gone:
        by_host.setdefault(each.host, []).append(each)
    return tuple(
        _hypothesis(host, by_host[host], [row_of[each.number] for each in by_host[host]], waiting)
        for host in sorted(by_host, key=lambda host: (not host, host))  # where nobody looked comes last
    )


def most_are_left(fleet: Fleet) -> bool:
    """Whether more ranks are there than are gone."""
    return bool(2 * np.count_nonzero(fleet.ranks.seen) > len(fleet.ranks))


def _hypothesis(host: str, gone: list[Gone], rows: list[int], waiting: Sequence[Evidence]) -> Hypothesis:
    who = rank_list(tuple(each.number for each in gone))
    it, was = ("it", "its host was") if len(gone) == 1 else ("they", "their hosts were")
    evidence = []
    if any(each.by_census for each in gone):
        evidence.append(Evidence("process", f"processes of {who} on {host}", 0.0, float(len(gone)), ""))
    silent = [each for each in gone if each.communicator][: budgets.TOLD]
    evidence += [
        Evidence("nccl ras", f"rank {each.number} answers NCCL in {each.communicator}", "no", None, "")
        for each in silent
    ]
    return Hypothesis(
        component="process",
        cause="exited" if host else "missing-collective",
        rows=tuple(rows),
        lost_s=float("nan"),
        support=CONVICTED if host else REPORTED,
        evidence=(*evidence, *waiting),
        action=(
            f"See the log of {who} on {host}, and `dmesg -T` there: {it} ended before the window, and the others wait."
            if host
            else f"Look whether {who} and the host live: {was} not observed, and NCCL gets no answer."
        ),
        host=host,
    )
