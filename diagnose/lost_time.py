"""What would a step take if the suspects behaved as their peers do? (What-if replay.)

T(s)     = max over ranks of own(r,s) + transfer(s)
T'(s)    = the same with own(r,s) replaced by the median of r's peers, for every suspect r
lost     = trimmed mean over s of T(s) - T'(s)          seconds per step, all suspects together
lost(r)  = lost · excess(r) / sum of the suspects' excesses

so that the lost times of all suspects never add up to more than the step can shrink.
"""

from __future__ import annotations

import warnings

import numpy as np

from diagnose.compare import peers_median, trimmed_mean
from diagnose.fleet import Floats, Ints


def gain(own: Floats, roles: Ints, suspects: Ints) -> float:
    """Seconds per step regained if all `suspects` (rows of `own`) took what their peers' median takes."""
    if len(suspects) == 0 or own.shape[1] == 0:
        return 0.0
    others = own.copy()
    others[suspects] = np.nan
    if len(suspects) < len(own):
        # Peers of a suspect are the innocent: with several suspects their own times must not enter the median.
        expected = peers_median(others, roles)[suspects]
        fallback = peers_median(own, roles)[suspects]
        expected = np.where(np.isfinite(expected), expected, fallback)
    else:
        expected = peers_median(own, roles)[suspects]
    replaced = own.copy()
    replaced[suspects] = np.where(np.isfinite(own[suspects]), np.fmin(own[suspects], expected), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        shrink = np.nanmax(own, axis=0) - np.nanmax(replaced, axis=0)
    return max(float(np.nan_to_num(trimmed_mean(shrink[None, :])[0])), 0.0)


def share_out(total_s: float, excess_s: Floats) -> Floats:
    """Divide the joint gain in proportion to each suspect's excess, seconds per step."""
    weight = np.maximum(np.nan_to_num(excess_s), 0.0)
    return total_s * weight / weight.sum() if weight.sum() > 0 else np.zeros(len(weight))
