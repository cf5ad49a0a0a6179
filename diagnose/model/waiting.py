"""Who waits for whom.

stay = wait + transfer. Collectives end together, so in each step the least stay of the group is the transfer and what
the others stay longer is waiting. The culprit waits least: a rank is only a suspect if its peers wait for it.
"""

from __future__ import annotations

import warnings

import numpy as np

from rankscope.diagnose.stats.robust import peers_median, trimmed_mean
from rankscope.probes.arrays import Bools, Floats, Ints


def transfer(wait: Floats) -> Floats:
    """Per step, the least time any rank stayed in collectives, seconds. NaN where no rank has the step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmin(wait, axis=0), dtype=np.float64)


def waited_for(wait: Floats, roles: Ints, counted: Bools | None = None) -> Floats:
    """Per rank, how much longer its peers (those `counted`) stay in collectives than it does: seconds per step they wait for it."""
    return trimmed_mean(peers_median(wait, roles, counted) - wait)


def least_waiter_share(wait: Floats) -> Floats:
    """Per rank, the share of steps in which it stayed in collectives least."""
    full = np.where(np.isfinite(wait), wait, np.inf)
    if full.shape[1] == 0:
        return np.zeros(len(wait))
    share: Floats = np.bincount(np.argmin(full, axis=0), minlength=len(wait)) / full.shape[1]
    return share
