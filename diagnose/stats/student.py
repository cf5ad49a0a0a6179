"""Probability of a difference by chance, if its error was estimated from few values (Student's t).

z = difference / sqrt(known² + error²)     known: a scale that is not estimated from these values; error: one that is, from few
freedom(z) = nu · (1 + known² / error²)²   nu: the error's degrees of freedom; the known part has any number (Welch & Satterthwaite).
                                           It is nu where the error is all there is, and grows with the known part
p = P(t >= z), one-sided, t of so many degrees of freedom
"""

from __future__ import annotations

import sys

import numpy as np

from rankscope.diagnose.stats.special import log_normal_below, student_below
from rankscope.probes.base.arrays import Floats

_MOST = 1 / sys.float_info.epsilon  # the normal distribution


def combined_freedom(known: Floats, error: Floats, freedom: Floats) -> Floats:
    """Return the degrees of freedom of sqrt(known² + error²) for each entry.

    The error has `freedom` of them, and the known part infinitely many.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        combined = freedom * (1 + (known / error) ** 2) ** 2
    return np.asarray(np.where(np.isnan(combined), 1.0, np.clip(combined, 1.0, _MOST)), dtype=np.float64)


def chance(z: Floats, freedom: Floats) -> Floats:
    """Return P(t >= z) for each value, one-sided, t of Student's distribution with `freedom`."""
    return student_below(np.clip(freedom, 1.0, _MOST), -z)


def nats(probability: Floats) -> Floats:
    """Return -ln p for each probability, at most 690.8 (p = 1e-300)."""
    return np.asarray(-np.log(np.maximum(probability, 1e-300)), dtype=np.float64)


def nats_of_normal(z: float) -> float:
    """Return -ln P(N >= z) of the standard normal distribution."""
    return -log_normal_below(-z)
