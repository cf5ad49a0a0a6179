"""Ranks that wait in another collective than their peers, while every rank waits.

place(r)  =  the user's function in which rank r waits, and what it calls there
odd       =  ranks of a role whose place differs from that of more than half of the role

Ranks of different pipeline stages wait at different places by design: only ranks of one role are
compared, and where no place has more than half of them none is odd. Evidence against: a link on
which data is not acknowledged (unacknowledged.py) explains any places.
"""

from __future__ import annotations

from collections import Counter

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import NO_COUNTER, Hypothesis
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.still.whereabouts import Place, places
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.text import after, rank_list


def elsewhere(fleet: Fleet, stalled_s: float) -> tuple[Hypothesis, ...]:
    """Return one hypothesis per rank that waits at another place than most of its role.

    `stalled_s`: seconds without progress of any rank.
    """
    at = places(fleet.patterns, len(fleet.ranks))
    by_role: dict[str, list[int]] = {}
    for row, role in enumerate(fleet.ranks.role):
        if fleet.ranks.state[row] == "running" and at[row] is not None:
            by_role.setdefault(role, []).append(row)
    found: list[Hypothesis] = []
    for rows in by_role.values():
        ((usual, most),) = Counter(at[row] for row in rows).most_common(1)
        if len(rows) < limits.SEVERAL or most * 2 <= len(rows) or usual is None:
            continue
        others = [row for row in rows if at[row] == usual]
        odd = [(row, place) for row in rows if (place := at[row]) is not None and place != usual]
        found.extend(_charge(fleet, row, place, usual, others, stalled_s) for row, place in odd)
    return tuple(found[: budgets.INSTANCES_SHOWN])


def _charge(fleet: Fleet, row: int, place: Place, usual: Place, others: list[int], stalled_s: float) -> Hypothesis:
    """Return process/missing-collective for a rank (row) that is at `place` while most of its role are at `usual`.

    `others`: rows of those at `usual`.
    """
    pid, host = int(fleet.ranks.pid[row]), fleet.ranks.host[row]
    who = rank_list(tuple(int(fleet.ranks.number[other]) for other in others))
    return Hypothesis(
        component="process",
        cause="missing-collective",
        rows=(row,),
        lost_s=float("nan"),
        support=NO_COUNTER,
        evidence=(
            Evidence("stacks", "where it is", place.of_one, None, ""),
            Evidence("stacks", f"where {who} {'is' if len(others) == 1 else 'are'}", usual.text, None, "", len(others)),
            Evidence("calls", "no progress of any rank", stalled_s, None, "s", len(fleet.ranks)),
        ),
        action=_action(place, usual, f"pid {pid}{after('on', host)}"),
        host=host,
        instance=f"pid {pid}",
        function=Function("collective", place.name, place.file, place.line) if place.name else None,
    )


def _action(place: Place, usual: Place, who: str) -> str:
    """Return the advice for a rank, named by `who`, that waits at `place` while its role waits at `usual`."""
    if place.held and not usual.held and place.waits_for.startswith("for "):
        return f"See why {who} waits in {place.function_words} {place.waits_for}: it does not come to the collective of the others."
    return (
        f"Compare what {who} does with the others: it is in another collective than they, or in one of another size. Look for a branch "
        "that only some ranks take."
    )
