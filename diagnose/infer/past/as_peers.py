"""Use a rank's earlier windows as its peers.

The fleet gets a row for the rank in each baseline window, and these rows and the rank form a role
of their own. All peer comparisons then apply unchanged (model/excess.py, model/attribute.py,
infer/causes/rank).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.labels import Holders, Labels
from rankscope.diagnose.infer.fleet.model import Fleet, Patterns, Ranks, Steps
from rankscope.diagnose.infer.fleet.stacks import Stacks
from rankscope.probes.base.arrays import Floats, Ints

RANKS_MOST = limits.PEERS_SAMPLED * 2  # largest fleet that is extended, since it is copied
_Table = TypeVar("_Table", Ranks, Patterns)


def with_past(fleet: Fleet, roles: Ints, past: Sequence[Fleet], rows: Ints) -> tuple[Fleet, Ints]:
    """Extend the fleet by a row for each of these ranks in each earlier fleet; return it with all roles.

    `roles`: by rank; `rows`: the ranks, each of which forms a new role with its own past.
    """
    ranks, patterns, steps = fleet.ranks, fleet.patterns, fleet.steps
    codes = [roles]
    following = int(roles.max()) + 1
    own_role = {int(fleet.ranks.number[row]): following + index for index, row in enumerate(rows)}
    codes[0] = np.array(
        [own_role.get(int(number), int(code)) for number, code in zip(ranks.number, roles, strict=True)], np.int64
    )
    for earlier in past:
        chosen = np.flatnonzero(np.isin(earlier.ranks.number, fleet.ranks.number[rows]))
        if len(chosen) == 0:
            continue
        moved = np.full(len(earlier.ranks), -1, dtype=np.int64)
        moved[chosen] = len(ranks) + np.arange(len(chosen))
        kept = np.flatnonzero(moved[earlier.patterns.rank] >= 0)
        renamed = replace(earlier.patterns, rank=moved[earlier.patterns.rank])
        patterns = _joined(patterns, renamed, kept)
        ranks = _joined(ranks, earlier.ranks, chosen)
        steps = _joined_steps(steps, earlier.steps, chosen)
        codes.append(np.array([own_role[int(number)] for number in earlier.ranks.number[chosen]], dtype=np.int64))
    return replace(fleet, ranks=ranks, patterns=patterns, steps=steps, slots=None), np.concatenate(codes)


def _joined(now: _Table, then: _Table, rows: Ints) -> _Table:
    """Append the given rows of `then` to `now`, column by column."""
    columns: dict[str, Any] = {}
    for field in fields(now):
        mine: Any = getattr(now, field.name)
        theirs: Any = getattr(then, field.name)
        if mine is None or theirs is None:
            columns[field.name] = None
        elif isinstance(mine, Labels):
            columns[field.name] = _labels(mine, theirs, rows)
        elif isinstance(mine, Stacks | Holders):
            columns[field.name] = mine.followed_by(theirs, rows)
        elif isinstance(mine, tuple):
            columns[field.name] = (*mine, *(theirs[row] for row in rows.tolist())) if mine and theirs else ()
        else:
            columns[field.name] = np.concatenate([mine, theirs[rows]])
    return replace(now, **columns)


def _labels(now: Labels, then: Labels, rows: Ints) -> Labels:
    """Append the given rows of `then` to a column of labels."""
    place = {text: code for code, text in enumerate(now.values)}
    new = [place.setdefault(text, len(place)) for text in then.values]
    codes = np.array(new, dtype=np.int64)[then.codes[rows]] if new else np.empty(0, dtype=np.int64)
    return Labels(np.concatenate([now.codes, codes]), tuple(place))


def _joined_steps(now: Steps, then: Steps, rows: Ints) -> Steps:
    """Append the steps of the given ranks (rows) of an earlier fleet to the matrices of the present one.

    Earlier steps match no present ones: they fill the present columns in turn.
    """

    def both(mine: Floats, theirs: Floats) -> Floats:
        """Append earlier ranks to one matrix; NaN where there are no earlier steps."""
        added = np.full((len(rows), mine.shape[1]), np.nan)
        if theirs.shape[1]:  # past steps match no present ones: use them in turn
            added[:] = theirs[rows][:, np.arange(mine.shape[1]) % theirs.shape[1]]
        return np.vstack([mine, added])

    names = ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")
    return Steps(now.start_s, *(both(getattr(now, name), getattr(then, name)) for name in names), number=None)
