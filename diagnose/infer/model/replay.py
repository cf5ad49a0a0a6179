"""What-if replay: the length of a step if the suspects behaved as their peers do.

T(s)     = busy(s) + transfer(s), busy(s) = max over ranks of own(r,s)
T'(s)    = the same with own(r,s) replaced by the median of r's peers that are no suspects, for
           every suspect r
gain     = trimmed mean over s of T(s) - T'(s), seconds per step, all suspects together
lost     = mean over s of the same, which is reported: the cost of a fault that makes few steps much
           longer
lost(r)  = lost · excess(r) / sum of the suspects' excesses

so that the lost times of all suspects never add up to more than the step can shrink. Where ranks
form pipelines of m micro-batches (1F1B), a step is as long as its slowest pipeline d, which its
slowest stage paces and all others fill once:

busy(s)  = max over d of (m - 1)/m · max over r in d of own(r,s) + 1/m · sum over r in d of own(r,s)
           + max once(r,s)

where own is without once, the time in functions that run once per step and not once per
micro-batch; its part above the usual is removed first when the replay takes time away. The replayed
T may exceed the measured one (a slow first stage hides the filling): then the lesser counts.

A step of S collectives, in each of which all ranks meet, is as long as the sum of the longest in
each, not as the longest of the sums: each rank waits for the last one S times. Where a suspect is
last in one collective, the others still meet in S - 1 without it; repaired, it meets them in all S,
but the sums show one meeting. The reported loss is too low by

unmet    = g · (1 - 1/√S) + Σ over all but the latest suspect of max(x - g/√S, 0) · (1 - 1/S), at
           most the transfer according to the sums
g        = mean over s of max over ranks r, no suspects, of (own(r,s) - mean over s' of own(r,s')):
           the longest of n sums of S parts that differ by chance is g = c(n) σ √S over their mean,
           that of n parts c(n) σ
x        = lateness of each suspect: of several, the sums show the latest and hide the others unless
           all are late in the same collective: one of S

Time taken from all ranks, from each at a different time, is waited for as often. With t(1,s) >=
t(2,s) >= … taken in a step the sums show t(1,s) alone; ranks hit in the same one of S collectives
share the wait for the longest:

scattered = mean over s of Σ over i >= 2 of t(i,s) · (1 - 1/S)^(i - 1), at most the transfer of the
            steps above its least

A rank that is as long as its peers in each single step is never the one that a step waits for, so
that a fault would be reported to cost what unevenness does. The price of what a rank does is
therefore that of T''(s): repaired, it is as uneven as its peers' median p, in its own order:
own''(r,s) = own(p,s'), with s' the step whose rank by length among those of p is that of s among
those of r. Not for a queue for a CPU: a rank that does not queue is not uneven by it.
"""

from __future__ import annotations

import warnings

import numpy as np

from rankscope.diagnose.infer.fleet.model import Pipelines
from rankscope.diagnose.stats.robust import mean_of_known, peers_median, trimmed_mean
from rankscope.probes.base.arrays import Floats, Ints


def busy(own: Floats, pipelines: Pipelines | None = None, once_s: Floats | None = None) -> Floats:
    """Return the busy seconds of each step: its longest own time, or its slowest pipeline; NaN if unknown.

    `own`: ranks x steps; `once_s`: replaces the pipelines' own.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if pipelines is None or pipelines.micro_batches < 2:
            return np.asarray(np.nanmax(own, axis=0), dtype=np.float64)
        batches = pipelines.micro_batches
        order = np.argsort(pipelines.member, kind="stable")
        edges = np.flatnonzero(np.diff(pipelines.member[order], prepend=-1))
        once = np.fmin(own, pipelines.once_s if once_s is None else once_s)[order]
        each = own[order] - once
        known = np.isfinite(each)
        slowest = np.maximum.reduceat(np.where(known, each, -np.inf), edges, axis=0)
        total = np.add.reduceat(np.where(known, each, 0.0), edges, axis=0)
        last = np.maximum.reduceat(np.where(known, once, -np.inf), edges, axis=0)
        paced = (batches - 1) / batches * slowest + total / batches + last
        longest = np.nanmax(np.where(np.isfinite(paced), paced, np.nan), axis=0)
        return np.asarray(longest, dtype=np.float64)


def repaired(own: Floats, roles: Ints, suspects: Ints) -> Floats:
    """Return own times with each suspect (row) at the median of its other peers, if that is less.

    Peers that are suspects too count only where there are no others.
    """
    others = own.copy()
    others[suspects] = np.nan
    if len(suspects) < len(own):
        # Compare with peers that are no suspects: the times of several suspects must not enter the
        # median.
        expected = peers_median(others, roles)[suspects]
        fallback = peers_median(own, roles)[suspects]
        expected = np.where(np.isfinite(expected), expected, fallback)
    else:
        expected = peers_median(own, roles)[suspects]
    result: Floats = own.copy()
    result[suspects] = np.where(np.isfinite(own[suspects]), np.fmin(own[suspects], expected), np.nan)
    return result


def unmet_s(own: Floats, late_s: Floats, collectives: float) -> float:
    """Seconds per step by which own times summed over a step understate the wait for suspects.

    g · (1 - 1/√S) + Σ over all but the latest suspect of max(x - g/√S, 0) · (1 - 1/S), not limited to the
    transfer; g: mean over steps of the largest own time above the rank's mean. `own`: ranks that are no
    suspects x steps; `late_s`: lateness x of each suspect; `collectives`: S per step; 0 if at most one.
    """
    if collectives <= 1:
        return 0.0
    longest_s = 0.0
    if len(own) > 1:
        longer = own - mean_of_known(own)[:, None]
        longest_s = float(mean_of_known(np.fmax.reduce(longer, axis=0)[None, :])[0])
    in_each_s = longest_s / float(np.sqrt(collectives))
    others_s = np.maximum(np.sort(late_s)[:-1] - in_each_s, 0.0).sum() * (1 - 1 / collectives)
    return longest_s - in_each_s + float(others_s)


def scattered_s(taken: Floats, collectives: float) -> float:
    """Seconds per step of waiting for time that was taken from ranks at different times.

    Scattered of the header. `taken`: ranks x steps, seconds; `collectives`: S, their number in a
    step.
    """
    if collectives <= 1 or not taken.size:
        return 0.0
    longest_first = -np.sort(-np.nan_to_num(taken), axis=0)
    waited_for = (1 - 1 / collectives) ** np.arange(len(taken))
    return float((longest_first[1:] * waited_for[1:, None]).sum(axis=0).mean())


def in_order_of(own: Floats, healed: Floats) -> Floats:
    """Sort each rank's `healed` times into the order of its own times, and never above these.

    The longest falls into the step that is longest in `own` (both ranks x steps). Steps in which
    only one of the two is known are unchanged.
    """
    known = np.isfinite(own) & np.isfinite(healed)
    # Unknown values sort last, equally many in both.
    order = np.argsort(np.where(known, own, np.inf), axis=1, kind="stable")
    values = np.sort(np.where(known, healed, np.inf), axis=1)
    placed = np.empty_like(healed)
    np.put_along_axis(placed, order, values, axis=1)
    return np.where(known, np.fmin(placed, own), healed)


def gain(
    own: Floats, roles: Ints, suspects: Ints, pipelines: Pipelines | None = None, measured: Floats | None = None
) -> float:
    """Seconds per step regained if all `suspects` (rows of `own`) were as fast as their peers'
    median.

    `measured`: seconds of each step that the ranks were really busy (step - transfer), if known
        apart from `own`.
    """
    if len(suspects) == 0 or own.shape[1] == 0:
        return 0.0
    return shrink(own, repaired(own, roles, suspects), pipelines, measured)


def shrink(
    own: Floats, better: Floats, pipelines: Pipelines | None = None, measured: Floats | None = None, whole: bool = False
) -> float:
    """Seconds per step by which the job is shorter with the own times `better`; at least 0.

    `whole`: the mean of all steps, including rare long ones; else a trimmed mean. Steps that are
        unknown on an improved rank are left out.
    """
    before, after = busy(own, pipelines), busy(better, pipelines, _better_once(own, better, pipelines))
    shorter = before - after
    if pipelines is not None and measured is not None:
        shorter = np.fmin(shorter, measured - after)
    untold = np.isnan(own[(better < own).any(axis=1)]).any(axis=0)
    if not untold.all():
        shorter = np.where(untold, np.nan, shorter)
    typical = mean_of_known if whole else trimmed_mean
    return max(float(np.nan_to_num(typical(shorter[None, :])[0])), 0.0)


def _better_once(own: Floats, better: Floats, pipelines: Pipelines | None) -> Floats | None:
    """Return pipelines.once_s (ranks x steps) less what `better` took from `own`; None without pipelines.

    once_s: seconds in functions that run once per step, not per micro-batch. At most its part above
    pipelines.usual_once_s is subtracted; what was taken beyond that leaves it as it is.
    """
    if pipelines is None:
        return None
    more = np.maximum(np.nan_to_num(pipelines.once_s - pipelines.usual_once_s), 0.0)
    return np.asarray(pipelines.once_s - np.clip(np.nan_to_num(own - better), 0.0, more), dtype=np.float64)


def share_out(total_s: float, excess_s: Floats) -> Floats:
    """Divide the joint gain among suspects in proportion to each one's excess, seconds per step.

    All 0 where no excess is above 0.
    """
    weight = np.maximum(np.nan_to_num(excess_s), 0.0)
    return total_s * weight / weight.sum() if weight.sum() > 0 else np.zeros(len(weight))
