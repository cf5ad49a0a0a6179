"""What nobody timed of a step, where somebody is waited for meanwhile: that is own work of whom the others wait for.

U(r,s)    = T(s) - own(r,s) - wait(r,s)                    T: length of the step, the median over ranks of own + wait
more(r,s) = U(r,s) - median over the peers of r of U(·,s)  what all ranks of a role do untimed is no difference

If more is 1 % of the step on average on some rank, and its peers stay in collectives longer than it does by half of that at least,
U(r,s) - least U of its role in the step counts as own time of every rank, as the function `not timed`: whether somebody is late by it
more than by accident is judged as of any other function. Where nobody timed any waiting, what is not timed is taken for waiting.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.robust import mean_of_known, nan_median, peers_median
from rankscope.probes.arrays import Floats, Ints

NAME = "not timed"


def not_timed(own: Floats, wait: Floats, roles: Ints) -> Floats:
    """Ranks x steps, seconds; 0 where a rank's time is accounted for. `own`, `wait`: the same shape, NaN where a step is missing."""
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
    return np.asarray(np.where(np.isfinite(values), values, np.inf).min(axis=0), dtype=np.float64)
