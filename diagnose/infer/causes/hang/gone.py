"""Ranks that ended before the window began, while the others wait for them.

gone(r)    =  the launcher of r's siblings started it on a host with a window, it is no process
              there and no process may become it: by the census (observer/census/rules/gone.py), or
              by NCCL, which gets no answer from it
silent(r)  =  its host has no window, and NCCL gets no answer from it: the rank or its host has
              ended

Evidence for: the others wait in a collective, or, where the kind of wait is unknown, each waits in
one place through all of the window. Evidence against: as many ranks are gone as are left, and none
is seen in a collective; at the end of a job one rank may remain for a while, waiting for a server.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, REPORTED, Hypothesis
from rankscope.diagnose.infer.fleet.model import Fleet, Gone
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.text import rank_list


def gone_before(fleet: Fleet, waiting: Sequence[Evidence]) -> tuple[Hypothesis, ...]:
    """Return one hypothesis per host with ranks that ended before the window.

    `waiting`: evidence of what the others do.
    """
    row_of = {int(number): row for row, number in enumerate(fleet.ranks.number)}
    by_host: dict[str, list[Gone]] = {}
    for each in fleet.gone:
        by_host.setdefault(each.host, []).append(each)
    return tuple(
        _hypothesis(host, by_host[host], [row_of[each.number] for each in by_host[host]], waiting)
        for host in sorted(by_host, key=lambda host: (not host, host))  # ranks on unobserved hosts come last
    )


def most_are_left(fleet: Fleet) -> bool:
    """Return whether more ranks were seen than are gone."""
    return bool(2 * np.count_nonzero(fleet.ranks.seen) > len(fleet.ranks))


def _hypothesis(host: str, gone: list[Gone], rows: list[int], waiting: Sequence[Evidence]) -> Hypothesis:
    """Return the hypothesis that these ranks (`rows`) of one host had ended; `host`: '' if it has no window."""
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
