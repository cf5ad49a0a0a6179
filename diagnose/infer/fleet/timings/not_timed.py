"""Count the untimed part of a step as own time of the rank, where others wait for it meanwhile.

T(s)      = length of the step, the median over ranks of own + wait
U(r,s)    = T(s) - own(r,s) - wait(r,s)
more(r,s) = U(r,s) - median over the peers of r of U(·,s): what all ranks of a role lack is ignored

If `more` is on average 1 % of the step on some rank, and its peers wait longer in collectives by at
least half of that, U(r,s) - least U of the role in the step becomes own time of every rank of the
role, as the function `not timed`, which is then judged like any other. If no waiting was timed,
untimed is waiting.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.verdict.function import NOT_TIMED
from rankscope.diagnose.stats.robust import mean_of_known, nan_median, peers_median
from rankscope.probes.base.arrays import Floats, Ints

NAME = NOT_TIMED


def not_timed(own: Floats, wait: Floats, roles: Ints) -> Floats:
    """Untimed own seconds as ranks x steps; 0 where a rank's time is accounted for.

    `own`, `wait`: the same shape, NaN where a step is missing.
    """
    nothing = np.zeros_like(own)
    if not own.size or not np.nansum(wait) > 0:
        return nothing
    step = nan_median(own + wait, 0)
    untimed = step - own - wait
    more = untimed - peers_median(untimed, roles)
    level, waited = mean_of_known(more), mean_of_known(peers_median(wait, roles) - wait)
    found = (level >= limits.NOTHING * float(np.nanmedian(step))) & (waited >= limits.HOLDS_LEAST * level)
    for role in np.unique(roles[found]):
        members = np.flatnonzero(roles == role)
        nothing[members] = np.nan_to_num(untimed[members] - _least(untimed[members]))
    return nothing


def _least(values: Floats) -> Floats:
    """Return the smallest finite value of each column (ranks x steps); inf where there is none."""
    return np.asarray(np.where(np.isfinite(values), values, np.inf).min(axis=0), dtype=np.float64)
