"""Steps from gradient updates: what the training loop is there for, and does once per iteration. Pure.

  update     the call that ends a gradient update: DDP's wait for its last bucket, where there is one (of several in one backward
             pass the last); else the backward pass. Of several places in the code (a validation with gradients, a GAN's two models)
             those whose loop holds the loops of all others (a critic with five updates of its own, loops.py); of those that are
             passed most often the one that is followed by the longest stretch without markers
  passes     updates per optimiser step. Where gradients are accumulated without telling DDP so, every pass looks like an update; but
             the thread is seen in its optimiser after every k-th only. k is the largest for which nearly all (`AGREEMENT`) of the
             sightings fall into one phase of k, which by chance they would not (`_CHANCE`); those of all ranks count together
  edge       where a step ends (edges.py)

A host that puts its work on a stream runs ahead of its GPU, and is level with it only when a call returns that waited for the GPU. If
such a call comes in every Nth iteration only (a loss that is printed), the N iterations before it share its time evenly: the GPU
made them one after the other, the host in a burst.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from rankscope.observer.steps import edges, loops
from rankscope.observer.steps.found import MIN_REPEATS, FoundSteps, none
from rankscope.observer.steps.markers import Markers
from rankscope.probes.arrays import Floats, Ints

AGREEMENT = 0.9
AS_OFTEN = 1.5  # halfway to a place that is passed in every other iteration
_MOST_PASSES = 64
_CHANCE = (
    1 / 128
)  # of a job whose optimiser runs after every update, seen as one that accumulates: a wrong step for a whole window


def find(markers: Markers, known_passes: int = 0) -> FoundSteps | None:
    """Steps; None where the markers hold no update. `known_passes`: updates per optimiser step on other ranks; 0: not known."""
    markers = _one_update_per_pass(markers)
    pairs, key = markers.keys()
    chosen = _update(markers, pairs, key)
    if chosen is None:
        return None
    done_s = np.maximum.accumulate(markers.end_s[key == chosen])
    after = _sightings(done_s, markers.optimiser_s)
    passes = known_passes or common_passes([after], len(done_s))
    if passes > 1:
        phase = int(np.bincount(after % passes, minlength=passes).argmax()) if len(after) else passes - 1
        done_s = done_s[phase::passes]
    edge_s = edges.of(markers, done_s) if len(done_s) > MIN_REPEATS else done_s
    if len(edge_s) < 2:
        return none("no complete step in the window")
    return FoundSteps(edge_s, passes=passes, optimised=after)


def _one_update_per_pass(markers: Markers) -> Markers:
    """A backward pass through two models (a GAN's generator and what judges it) ends the update of each: together they are one."""
    passes, updates = markers.of(markers.backward), np.flatnonzero(markers.of(markers.update))
    if not passes.any() or not len(updates):
        return markers
    of_pass = np.searchsorted(markers.start_s[passes], markers.end_s[updates], side="right") - 1
    inside = (of_pass >= 0) & (markers.end_s[updates] <= markers.end_s[passes][of_pass])
    kept = np.ones(len(markers), dtype=bool)
    kept[updates[:-1]] = ~(inside[:-1] & inside[1:] & (of_pass[:-1] == of_pass[1:]))
    return markers.where(kept)


def _update(markers: Markers, pairs: Ints, key: Ints) -> int | None:
    count = np.bincount(key, minlength=len(pairs))
    for symbols in (markers.update, markers.backward):
        ours = [one for one in range(len(pairs)) if int(pairs[one, 0]) in symbols and count[one] > 1]
        if ours:
            outer = loops.outermost(markers, key, ours)
            ours = outer if count[outer].sum() >= MIN_REPEATS else ours
            apart_s, follows = markers.apart_s(key), edges.follows_s(markers)
            usual = [one for one in ours if apart_s[one] <= AS_OFTEN * min(apart_s[ours])]
            return max(usual, key=lambda one: float(np.median(follows[key == one])))
    return None


def _sightings(done_s: Floats, optimiser_s: Floats) -> Ints:
    """The updates after which, and before the next, the thread was seen in its optimiser."""
    at = np.searchsorted(done_s, optimiser_s, side="right") - 1
    return np.unique(at[(at >= 0) & (at < len(done_s) - 1)]).astype(np.int64)


def common_passes(sightings: Sequence[Ints], updates: int) -> int:
    """Updates per optimiser step, given of each rank of a job the updates after which it was seen in its optimiser; 1: no accumulation."""
    best, told = 1, [after for after in sightings if len(after)]
    seen = sum(len(after) for after in told)
    for passes in range(
        2, min(_MOST_PASSES, updates - 1) + 1
    ):  # of long ones there are too few steps, which is to be said
        outside = seen - sum(int(np.bincount(after % passes).max()) for after in told)
        if outside <= (1 - AGREEMENT) * seen and _by_chance(passes, seen - len(told), outside) <= _CHANCE:
            best = passes
    return best


def _by_chance(phases: int, sightings: int, outside: int) -> float:
    """How likely so many sightings (besides the one of each rank that says which phase) all but `outside` fall into one of so many
    phases, or of more, by chance. sum over k >= phases of k^-n <= phases^-n (1 + phases / (n - 1))."""
    inside = sightings - outside
    if inside < 2:
        return 1.0
    return float(comb(sightings, outside) * phases**-inside * (1 + phases / (inside - 1)))
