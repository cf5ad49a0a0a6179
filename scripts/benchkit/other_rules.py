"""Two rules of others that see the same patterns as the diagnoser: EROICA's, and the median with the MAD."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.stats.robust import robust_sd
from rankscope.probes.arrays import Bools, Floats

KINDS = ("python", "gpu", "memory", "collective", "io", "sync", "sched")


def matrix_of(fleet: Fleet, functions: int) -> tuple[Floats, Floats, Bools]:
    """Seconds per step and beta as ranks x functions, and which functions are the rank's own work."""
    shape = (len(fleet.ranks), functions)
    own = fleet.patterns.kind.codes.reshape(shape)[0] != KINDS.index("collective")
    return fleet.patterns.per_step_s.reshape(shape), fleet.patterns.beta.reshape(shape), own


def median_mad(seconds: Floats, beta: Floats, own: Bools) -> set[int]:
    median = np.median(seconds, axis=0)
    odd = (seconds > median + 5 * robust_sd(seconds, 0)) & (beta > 0.01) & own
    return set(np.flatnonzero(odd.any(axis=1)).tolist())


def eroica(seconds: Floats, beta: Floats, own: Bools, seed: int) -> set[int]:
    """Only its rule for peers: that of expected ranges knows no ranks."""
    peers = np.random.default_rng(seed).choice(len(beta), min(100, len(beta)), replace=False)
    accused: set[int] = set()
    for column in np.flatnonzero(own):
        normal = beta[:, column] / max(float(beta[:, column].max()), 1e-12)
        others = np.sort(normal[peers])
        different = np.searchsorted(others, normal - 0.4, "right") + len(others) - np.searchsorted(others, normal + 0.4)
        median = float(np.median(different))
        mad = float(np.median(np.abs(different - median)))
        odd = (different > median + 5 * mad) & (beta[:, column] > 0.01)
        accused.update(np.flatnonzero(odd).tolist())
    return accused
