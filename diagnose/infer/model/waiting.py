"""Which ranks wait for which.

stay = wait + transfer. Collectives end together, so in each step the least stay of the group is the
       transfer, and what the others stay longer is waiting. The slow rank waits least: a rank is
       only a suspect if its peers wait for it.

Roles may work at once, or one after the other (actors, then the learner). In the second case a step
is longer by what the longest rank of each role works, not only by what the longest of all does:

T(s)  = Σ_u a(u) work(u,s) + Σ_u b(u) queue(u,s) + c, u: roles; of the rank of u with the longest
        own time, work: own without the time ready but not running, queue: that time, which others
        may need for their work
gain  = Σ_u max over r in u of own(r,s), less the same of the own times without the excess of
        suspects

At once: Σ a = 1, since in each step one rank is the longest and steps grow with it alone. One after
               another: a(u) = 1 for each u, Σ a = their number. That is concluded where Σ a > 1
               clearly, no a(u) is below a half, and all of them fit into a step: Σ mean work <=
               mean T. At once is concluded where they do not fit, or Σ a is nearer to 1.
"""

from __future__ import annotations

import warnings

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.robust import peers_median, trimmed_mean
from rankscope.diagnose.stats.slopes import slopes
from rankscope.probes.base.arrays import Bools, Floats, Ints


def transfer(wait: Floats) -> Floats:
    """Least time any rank stayed in collectives, per step, in seconds; NaN without the step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmin(wait, axis=0), dtype=np.float64)


def waited_for(wait: Floats, roles: Ints, counted: Bools | None = None) -> Floats:
    """Seconds per step that each rank's peers (those `counted`) stay longer in collectives than it does."""
    return trimmed_mean(peers_median(wait, roles, counted) - wait)


def least_waiter_share(wait: Floats) -> Floats:
    """Share of steps in which each rank stayed in collectives least; of a step in which several did, a part for each."""
    if wait.shape[1] == 0:
        return np.zeros(len(wait))
    least = np.isfinite(wait) & (wait == np.fmin.reduce(wait, axis=0))
    return np.asarray((least / np.maximum(least.sum(axis=0), 1)).sum(axis=1) / wait.shape[1], dtype=np.float64)


def one_after_another(own: Floats, queued: Floats, roles: Ints, step: Floats) -> bool | None:
    """Whether roles work one after another (True) or at once (False); None where it is not clear.

    `own`, `queued`: ranks x steps, seconds; `step`: seconds of each step.
    """
    of_each = [_longest(own, queued, np.flatnonzero(roles == role)) for role in np.unique(roles)]
    if len(of_each) < 2:
        return False
    work, queue = (np.array(each) for each in zip(*of_each, strict=True))
    moving = queue[np.nanmax(queue, axis=1, initial=0.0) > 0]
    found = slopes(np.concatenate([work, moving]), step)
    if found is None:
        return None
    count = len(work)
    together, error = found.sum_of((np.arange(len(found.slope)) < count).astype(np.float64))
    least, most = together - limits.Z_CLEAR * error, together + limits.Z_CLEAR * error
    if float(trimmed_mean(work).sum()) > float(trimmed_mean(step[None])[0]) or most < (1 + count) / 2:
        return False
    return True if least > 1 and (found.slope[:count] >= limits.HOLDS_LEAST).all() else None


def gain_in_turn(own: Floats, better: Floats, roles: Ints) -> float:
    """Seconds per step regained with the own times `better` where roles work in turn; at least 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        shorter = sum(
            np.nanmax(own[roles == role], axis=0) - np.nanmax(better[roles == role], axis=0)
            for role in np.unique(roles)
        )
    return max(float(np.nan_to_num(trimmed_mean(np.asarray(shorter)[None])[0])), 0.0)


def _longest(own: Floats, queued: Floats, rows: Ints) -> tuple[Floats, Floats]:
    """Return, by step, (work, queue) seconds of the rank with the longest own time among `rows`.

    NaN where none of them has the step.
    """
    known = np.where(np.isfinite(own[rows]), own[rows], -np.inf)
    who, steps = rows[np.argmax(known, axis=0)], np.arange(own.shape[1])
    longest, queue = own[who, steps], np.nan_to_num(queued[who, steps])
    return longest - queue, np.where(np.isfinite(longest), queue, np.nan)
