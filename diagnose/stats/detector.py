"""Detect what is persistently a little above the others: a sequential rank test without a noise model, always valid.

The k-th of N values in one comparison has the normal score q(k) = Phi^-1((k - 1/2) / N). If all
have the same distribution, each order is equally probable, and so

e(k; d) = exp(d q(k)) / mean over j of exp(d q(j))                     has mean 1 for any distribution of the values

A detector multiplies these over comparisons, and restarts where the product has fallen below 1
(Shin, Ramdas & Rinaldo 2023: an e-detector):

M(d) <- max(M(d), 1) · e(k; d),        M = mean over d in SHIFTS of M(d)

Without a difference E[M] <= t after t comparisons, so over T comparisons of all watched values M >=
h falsely at most T / h times on average: h is chosen by the acceptable number of false alarms. A
value that begins to be above is found soon, however long it was not; after a repair M falls.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.stats.special import normal_quantiles
from rankscope.probes.base.arrays import Floats, Ints

SHIFTS = np.array(
    [0.5, 1.0, 1.5, 2.0, 3.0]
    # in standard deviations of one comparison: from shifts that need 100 comparisons to those that need
    # 5
)
_MOST_NATS = 300.0


def normal_scores(values: Floats) -> Floats:
    """Return for each value the normal score of its rank among them; ties get the mean of their scores."""
    count = len(values)
    places = normal_quantiles((np.arange(count) + 0.5) / count)
    _, number, sizes = np.unique(values, return_inverse=True, return_counts=True)
    first = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    mean = places[first]
    for tied in np.flatnonzero(sizes > 1):
        mean[tied] = places[first[tied] : first[tied] + sizes[tied]].mean()
    return np.asarray(mean[number.reshape(-1)], dtype=np.float64)


def evidence(scores: Floats, count: Ints | int) -> Floats:
    """Return ln e by value and shift, of one comparison.

    `scores`: normal scores among `count` values (one number, or one per entry).
    """
    counts = np.broadcast_to(np.asarray(count), scores.shape)
    result = np.empty((len(scores), len(SHIFTS)))
    for size in np.unique(counts):
        rows = counts == size
        result[rows] = scores[rows, None] * SHIFTS[None, :] - _norm(int(size))[None, :]
    return result


def followed(nats: Floats, new: Floats) -> Floats:
    """Return ln M(d) after one more comparison, by value and shift.

    `nats`: ln M(d) before; `new`: ln e of the comparison (`evidence`).
    """
    return np.asarray(np.minimum(np.maximum(nats, 0.0) + new, _MOST_NATS), dtype=np.float64)


def combined(nats: Floats) -> Floats:
    """Return ln M by value, M the mean of M(d) over shifts. `nats`: ln M(d), shifts on the last axis."""
    top = nats.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(nats - top).mean(axis=-1)), dtype=np.float64)


def _norm(count: int) -> Floats:
    """Return ln of the mean of exp(d q) over all places among `count` values, by shift d."""
    places = normal_quantiles((np.arange(count) + 0.5) / count)
    return np.asarray(np.log(np.exp(places[:, None] * SHIFTS[None, :]).mean(axis=0)), dtype=np.float64)
