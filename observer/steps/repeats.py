"""Find steps from the repeating sequence of markers, where no gradient update is seen. Pure.

Where the job's code is known, a step is a turn of the loop that makes the calls (loops.py); several
where a loop around it may be the job's own and the gaps between the turns repeat (stage 3).
Elsewhere the sequence alone decides.

Training repeats the same sequence of calls every step; its period is found in three stages:

1. the smallest p for which the calls agree with themselves shifted by p in at least `AGREEMENT` of the positions
   (EROICA finds steps from repeating markers; a template there needs 10 repetitions, here `MIN_REPEATS` to be reported). Calls
   from sites that are passed far less often than the usual one are left out, with the gaps they lie in: they lie
   inside steps;
2. the smallest multiple of it at which the training thread returns to its loop: calls of a library's threads that end in one
   absence of that thread lie in one iteration (ten updates in one compiled call are one). A thread that runs ahead
   of its library returns once for several iterations: their number follows from its dispatches from one
   call site (dispatches.py);
3. the smallest multiple k·p of it whose *gaps* repeat as well: with r(k) the variance of the gaps around their mean per
   phase of a period of k·p, relative to their total variance: the least k that leaves hardly more (`AS_GOOD`) than the best one,
   if that leaves r(1) / `GAP_GAIN` at most. So eight equal all-reduces per step are one step, not eight, and noise, of which a
   longer period always explains a little more, does not make one of fifty.

A step ends with the end of the marker before the longest stretch without markers: collectives end
together, so this instant is the same for all ranks, and what a rank does before its next collective
lies in the step that it delays. Where a period contains calls that waited for the GPU, the step
ends with one of them, chosen by the same rule (updates.py says why). Where there is none, the edges
are ahead of the GPU's time, by an amount that is the same in every step: sums over steps stay
right, a step borrows from its neighbour.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankscope.observer.steps import dispatches, edges, loops
from rankscope.observer.steps.found import LEAST_STAY_S, MIN_REPEATS, FoundSteps, none
from rankscope.observer.steps.loops import Turns
from rankscope.observer.steps.markers import Markers
from rankscope.probes.base.arrays import Bools, Floats, Ints

AGREEMENT = 0.9
# of 60 series of 30 to 400 gaps without any rhythm none reaches it; three calls per step on a busy
# host reach 1.8
GAP_GAIN = 1.5
AS_GOOD = (
    1.5  # a period and its multiples differ by 5-20 % on the jobs of the lab, a period and half of it by more than 2
)
_MAX_PERIOD = 4096
_MAX_MULTIPLE = 64


def find(markers: Markers, known_period: int = 0, known_turns: int = 0, unseen: bool = False) -> FoundSteps:
    """Find the steps of one rank; none, with the reason, where nothing repeats.

    `known_period`: markers per step on the job's other ranks; 0 unknown. `known_turns`: loop turns
    per step; `unseen`: some turns made no call there.
    """
    turned = loops.turns(markers, unseen)
    if turned is not None and len(turned.done_s) > MIN_REPEATS:
        return _of_turns(markers, turned, known_turns)
    usual = _usual(markers)
    markers = replace(markers.where(usual), interrupted=np.diff(np.cumsum(~usual)[usual], prepend=0) > 0)
    level = markers.of(markers.level)
    if level.any():
        steps = _find_steps(markers, level, known_period)
        if steps.count:
            return steps
        # The host hardly ever waits for its GPU: use its collectives alone.
        markers = markers.where(~level)
    return _find_steps(markers, np.zeros(len(markers), dtype=bool), known_period)


def _of_turns(markers: Markers, turned: Turns, known: int) -> FoundSteps:
    """Build steps from the turns of a loop: of `known` turns each (0: unknown, the gaps between turns decide).

    The gaps decide only if an outer loop may be the job's own and all turns are alike; else a step
    is one turn. Turns that make different calls are iterations: an inner loop does the same in
    each.
    """
    done_s = turned.done_s
    each = Markers(np.zeros(len(done_s), dtype=np.int64), turned.start_s, done_s)
    together = known or (_gap_multiple(each, 1) if turned.enclosed and turned.alike else 1)
    if len(done_s) < MIN_REPEATS * together:
        if known > 1:  # single turns are no steps where other ranks' steps are several
            return none(f"only {len(done_s) // known} complete steps in the window")
        together = 1
    if together > 1:
        done_s = done_s[_anchor(each, together) :: together]
    edge_s = edges.of(markers, done_s)
    if len(edge_s) <= MIN_REPEATS:
        return none(f"only {max(len(edge_s) - 1, 0)} complete steps in the window")
    return FoundSteps(edge_s, turns=together, unseen=turned.unseen)


def _usual(markers: Markers) -> Bools:
    """Return a mask of the usual calls: their site is passed at least a third as often as the median passage's.

    Waits for the GPU all count. A call from an unknown site is assigned to the most usual site of
    its function.
    """
    pairs, key = markers.keys()
    if markers.site is None or not len(key):
        return np.ones(len(key), dtype=bool)
    apart_s = markers.apart_s(key)
    least_s = {int(symbol): float(apart_s[pairs[:, 0] == symbol].min()) for symbol in np.unique(pairs[:, 0])}
    of_call = np.where(markers.site == 0, [least_s[int(symbol)] for symbol in markers.symbol], apart_s[key])
    usual: Bools = (of_call <= 3 * _median_passage_s(apart_s)) | markers.of(markers.level)
    return usual


def _median_passage_s(apart_s: Floats) -> float:
    """Return the interval (s) of the site of the median passage, given the interval of each site.

    A site has as many passages as its interval allows, in proportion to 1 / interval.
    """
    apart_s = np.sort(np.maximum(apart_s, 1e-9))
    passages = np.cumsum(1 / apart_s)
    return float(apart_s[np.searchsorted(passages, passages[-1] / 2)])


def _find_steps(markers: Markers, level: Bools, known_period: int) -> FoundSteps:
    """Find steps from the repeating sequence of calls alone (stages 1 to 3); none, with the reason, if none repeats.

    `level`: mask of the calls that wait for the GPU. `known_period`: markers per step on other
    ranks, 0 unknown; used if it is a multiple of the period found.
    """
    count = len(markers.symbol)
    if count < 2 * MIN_REPEATS:
        return none(f"too few calls that mark steps (collectives, backward passes): {count} in the window")
    base = _symbol_period(markers, level)
    if base == 0:
        return none("the sequence of collectives and backward passes does not repeat")
    clean = _clean_stretch(markers, base)
    period = known_period
    if not period or period % base:
        handed_over = dispatches.multiple(clean, base)
        period = base * (handed_over or _absences_multiple(clean, base))
        period *= 1 if handed_over else _gap_multiple(clean, period)
    if len(clean.symbol) < period:
        return none("the sequence of collectives and backward passes does not repeat")
    template = clean.symbol[:period]
    at = _occurrences(markers.symbol, template, _anchor(clean, period))
    edge_s = np.unique(np.maximum.accumulate(markers.end_s[at]))  # a call may outlast the one after it
    if len(edge_s) <= MIN_REPEATS:
        return none(f"only {max(len(edge_s) - 1, 0)} complete steps in the window")
    return FoundSteps(edge_s, period)


def _symbol_period(markers: Markers, level: Bools) -> int:
    """Find the smallest period, in markers, at which the symbols repeat (stage 1); 0 if none.

    Rare as they are, the markers of the mask `level` must repeat as well. Each site is weighted by
    how often it is passed: one call among twenty of a burst counts as much as they do.
    """
    _, key = markers.keys()
    symbol, weight = markers.symbol, (1 / np.maximum(markers.apart_s(key), 1e-9) / np.bincount(key))[key]
    for period in range(1, min(len(symbol) // MIN_REPEATS, _MAX_PERIOD) + 1):
        same = symbol[period:] == symbol[:-period]
        rare = same[level[period:] | level[:-period]]
        agreement = float(np.average(same, weights=weight[period:]))
        if agreement >= AGREEMENT and (not len(rare) or float(np.mean(rare)) >= AGREEMENT):
            return period
    return 0


def _absences_multiple(markers: Markers, base: int) -> int:
    """Find the least multiple of `base` markers bounded by absences of the training thread (stage 2); 1 if none.

    At one position of nearly every such period two successive markers do not lie in the same
    absence.
    """
    if markers.absence is None:
        return 1
    inside = (markers.absence[1:] == markers.absence[:-1]) & (markers.absence[1:] > 0)
    for multiple in range(1, _MAX_MULTIPLE + 1):
        period = multiple * base
        usable = len(inside) // period * period
        if usable < MIN_REPEATS * period:
            break
        if float(inside[:usable].reshape(-1, period).mean(axis=0).min()) <= 1 - AGREEMENT:
            return multiple
    return 1


def _gap_multiple(markers: Markers, base: int) -> int:
    """Find the least multiple of `base` markers after which the gaps between markers repeat too (stage 3); 1 if none.

    Compares logarithms of the gaps, so that one long pause does not decide.

    Gaps below a tenth of the mean count as equal: microseconds between two calls of a burst mean
    nothing.
    """
    gaps = np.maximum(markers.start_s[1:] - markers.end_s[:-1], 0.0)
    gaps = np.log(np.maximum(gaps, max(0.1 * float(gaps.mean()), 1e-5)))
    if markers.interrupted is not None:
        gaps[markers.interrupted[1:]] = np.nan  # does not happen in every iteration
    first = _unexplained(gaps, base)
    if first <= 0.02:  # equal gaps per phase already
        return 1
    left: dict[int, float] = {}
    for multiple in range(2, _MAX_MULTIPLE + 1):
        if multiple * base * (MIN_REPEATS + 1) > len(gaps):
            break
        left[multiple] = _unexplained(gaps, base * multiple)
    best = min(left.values(), default=first)
    if best > first / GAP_GAIN:
        return 1
    return next(multiple for multiple, rest in left.items() if rest <= AS_GOOD * best + 0.02)


def _unexplained(gaps: Floats, period: int) -> float:
    """Return the share of the gaps' deviation that a period (in markers) leaves; 1.0 if there are too few gaps.

    With n - period degrees of freedom, it is the mean deviation from the median of each phase over
    that from the overall median. Unknown gaps (NaN) are left out.
    """
    usable = len(gaps) // period * period
    if usable <= period:
        return 1.0
    by_phase = gaps[:usable].reshape(-1, period)
    by_phase = by_phase[:, np.isfinite(by_phase).any(axis=0)]
    if not by_phase.size:
        return 1.0
    rest = float(np.nanmean(np.abs(by_phase - _medians(by_phase)))) * usable / (usable - period)
    known = by_phase[np.isfinite(by_phase)]
    total = float(np.mean(np.abs(known - np.median(known))))
    return rest / total if total > 0 else 0.0


def _medians(columns: Floats) -> Floats:
    """Return the median of each column without NaN (np.nanmedian takes ten times as long)."""
    ordered, known = np.sort(columns, axis=0), np.isfinite(columns).sum(axis=0)  # NaN comes last
    column = np.arange(columns.shape[1])
    middle: Floats = (ordered[(known - 1) // 2, column] + ordered[known // 2, column]) / 2
    return middle


def _clean_stretch(markers: Markers, base: int) -> Markers:
    """Return the longest stretch in which every symbol repeats after `base`: no marker was lost or
    added.
    """
    same = np.concatenate(([False], markers.symbol[base:] == markers.symbol[:-base], [False]))
    changes = np.flatnonzero(np.diff(same.astype(np.int8)))
    starts, ends = changes[::2], changes[1::2]
    longest = int(np.argmax(ends - starts))
    kept = slice(int(starts[longest]), int(ends[longest]) + base)
    return markers.where(kept)


def _anchor(markers: Markers, period: int) -> int:
    """Return the position in the period of the marker before the longest stretch without markers.

    Only markers that synchronise the host with its GPU, if there are any that last.
    """
    gaps = markers.start_s[1:] - markers.end_s[:-1]
    usable = len(gaps) // period * period
    if usable == 0:
        return 0
    follows = np.median(gaps[:usable].reshape(-1, period), axis=0)
    stays = np.median((markers.end_s - markers.start_s)[:usable].reshape(-1, period), axis=0)
    level = np.isin(markers.symbol[:period], list(markers.level)) & (stays >= LEAST_STAY_S)
    return int(np.argmax(np.where(level, follows, -1.0) if level.any() else follows))


def _occurrences(symbol: Ints, template: Ints, anchor: int) -> Ints:
    """Return the indices of the anchor marker, one per period, resynchronising where a marker was
    lost or added.

    Up to 8 symbols before and after the anchor must match the template; where they do not, the next
    position is tried.
    """
    period = len(template)
    reach = min(period // 2, 8)
    offsets = np.arange(-reach, reach + 1)
    expected = template[(anchor + offsets) % period]
    found, at = [], 0
    while at < len(symbol):
        positions = at + offsets
        inside = (positions >= 0) & (positions < len(symbol))
        if symbol[at] == template[anchor] and np.mean(symbol[positions[inside]] == expected[inside]) >= AGREEMENT:
            found.append(at)
            at += period
        else:
            at += 1
    return np.array(found, dtype=np.int64)
