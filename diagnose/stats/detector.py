"""Who is always a little above the others? A sequential test of ranks that needs no model of the noise, and may be looked at at any time.

Of N values in one comparison the k-th has the normal score q(k) = Phi^-1((k - 1/2) / N). If all of them are alike, each order is as
probable as any other, and so

e(k; d) = exp(d q(k)) / mean over j of exp(d q(j))                     has the mean 1, whatever the values are distributed like

A detector multiplies these up over comparisons, and begins anew where it has fallen below 1 (Shin, Ramdas & Rinaldo 2023: an e-detector):

M(d) <- max(M(d), 1) · e(k; d),        M = mean over d in SHIFTS of M(d)

What is alike all along has E[M] <= t after t comparisons, so over T comparisons of all that is watched M >= h falsely at most T / h
times on average: h is chosen by how many false names may be. What begins to be above is found soon, however long it was not; after a
repair M falls.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.stats.special import normal_quantiles
from rankscope.probes.arrays import Floats, Ints

SHIFTS = np.array(
    [0.5, 1.0, 1.5, 2.0, 3.0]
)  # in standard deviations of one comparison: from what takes 100 comparisons to what takes 5
_MOST_NATS = 300.0


def normal_scores(values: Floats) -> Floats:
    """The score of each value among them, ties at their mean."""
    count = len(values)
    places = normal_quantiles((np.arange(count) + 0.5) / count)
    _, number, sizes = np.unique(values, return_inverse=True, return_counts=True)
    first = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    mean = places[first]
    for tied in np.flatnonzero(sizes > 1):
        mean[tied] = places[first[tied] : first[tied] + sizes[tied]].mean()
    return np.asarray(mean[number.reshape(-1)], dtype=np.float64)


def evidence(scores: Floats, count: Ints | int) -> Floats:
    """ln e by value and shift. `scores`: of values among `count` (the same of all, or one entry each)."""
    counts = np.broadcast_to(np.asarray(count), scores.shape)
    result = np.empty((len(scores), len(SHIFTS)))
    for size in np.unique(counts):
        rows = counts == size
        result[rows] = scores[rows, None] * SHIFTS[None, :] - _norm(int(size))[None, :]
    return result


def followed(nats: Floats, new: Floats) -> Floats:
    """ln M(d) after one more comparison; `nats`, `new`: ln M(d) before, and ln e, by value and shift."""
    return np.asarray(np.minimum(np.maximum(nats, 0.0) + new, _MOST_NATS), dtype=np.float64)


def combined(nats: Floats) -> Floats:
    """ln M by value."""
    top = nats.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(nats - top).mean(axis=-1)), dtype=np.float64)


def _norm(count: int) -> Floats:
    """ln of the mean of exp(d q) over all places, by shift."""
    places = normal_quantiles((np.arange(count) + 0.5) / count)
    return np.asarray(np.log(np.exp(places[:, None] * SHIFTS[None, :]).mean(axis=0)), dtype=np.float64)
