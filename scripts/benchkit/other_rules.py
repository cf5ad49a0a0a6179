"""Two rules of others that see the same patterns as the diagnoser.

EROICA        beta > 0.01, and beta over its largest is 0.4 or more (L1) from more of 100 sampled peers than the median rank's is,
              + 5 MAD. No utilisation is simulated: mu and sigma, which the rule also uses, are missing, as is its rule for expected ranges
median+MAD    beta > 0.01, and seconds per step above the median by more than 5 robust_sd (1.4826 MAD)

Seconds per step and beta are ranks x functions of the rank's own work.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.stats.robust import robust_sd
from rankscope.probes.base.arrays import Floats

_BETA_LEAST, _MADS = 0.01, 5


def median_mad(seconds: Floats, beta: Floats) -> set[int]:
    odd = (seconds > np.median(seconds, axis=0) + _MADS * robust_sd(seconds, 0)) & (beta > _BETA_LEAST)
    return set(np.flatnonzero(odd.any(axis=1)).tolist())


def eroica(beta: Floats, seed: int) -> set[int]:
    peers = np.random.default_rng(seed).choice(len(beta), min(100, len(beta)), replace=False)
    accused: set[int] = set()
    for of_function in beta.T:
        normal = of_function / max(float(of_function.max()), 1e-12)
        others = np.sort(normal[peers])
        different = np.searchsorted(others, normal - 0.4, "right") + len(others) - np.searchsorted(others, normal + 0.4)
        median = float(np.median(different))
        mad = float(np.median(np.abs(different - median)))
        odd = (different > median + _MADS * mad) & (of_function > _BETA_LEAST)
        accused.update(np.flatnonzero(odd).tolist())
    return accused
