"""Find steps from gradient updates, which the training loop makes once per iteration. Pure.

update     the call that ends a gradient update: DDP's wait for its last bucket, where there is one (of several in one backward
           pass the last); else the backward pass. Of several call sites (a validation with gradients, a GAN's two models)
           those whose loop encloses the loops of all others (a critic with five updates of its own, loops.py); of those that are
           passed most often the one that is followed by the longest stretch without markers
passes     updates per optimiser step, where gradients are accumulated without DDP's no_sync, or without DDP (passes.py)
edge       where a step ends (edges.py)

A host that puts its work on a stream runs ahead of its GPU, and is synchronised with it only when a
call returns that waited for the GPU. If such a call occurs in every Nth iteration only (a loss that
is printed), the N iterations before it share its time evenly: the GPU made them one after the
other, the host in a burst.
"""

from __future__ import annotations

import numpy as np

from rankscope.observer.steps import edges, loops, passes
from rankscope.observer.steps.found import MIN_REPEATS, FoundSteps, none
from rankscope.observer.steps.markers import Markers
from rankscope.probes.base.arrays import Ints

AS_OFTEN = 1.5  # halfway to a site that is passed in every other iteration


def find(markers: Markers, known_passes: int = 0) -> FoundSteps | None:
    """Find steps; None where the markers contain no update.

    `known_passes`: updates per optimiser step on other ranks; 0: unknown.
    """
    markers = _one_update_per_pass(markers)
    pairs, key = markers.keys()
    chosen = _update(markers, pairs, key)
    if chosen is None:
        return None
    done_s = np.maximum.accumulate(markers.end_s[key == chosen])
    seen = passes.seen(markers, key == chosen)
    each = known_passes or passes.common([seen])
    done_s = done_s[passes.last_of_each(seen, each)]
    edge_s = edges.of(markers, done_s) if len(done_s) > MIN_REPEATS else done_s
    if len(edge_s) < 2:
        return none("no complete step in the window")
    return FoundSteps(edge_s, passes=each, updates=seen)


def _one_update_per_pass(markers: Markers) -> Markers:
    """Drop all but the last update in each backward pass.

    A pass through two models (a GAN's generator and discriminator) ends the update of each.
    """
    passes, updates = markers.of(markers.backward), np.flatnonzero(markers.of(markers.update))
    if not passes.any() or not len(updates):
        return markers
    of_pass = np.searchsorted(markers.start_s[passes], markers.end_s[updates], side="right") - 1
    inside = (of_pass >= 0) & (markers.end_s[updates] <= markers.end_s[passes][of_pass])
    kept = np.ones(len(markers), dtype=bool)
    kept[updates[:-1]] = ~(inside[:-1] & inside[1:] & (of_pass[:-1] == of_pass[1:]))
    return markers.where(kept)


def _update(markers: Markers, pairs: Ints, key: Ints) -> int | None:
    """Choose the call site whose calls end the gradient updates, by the module's rules; None if there is none.

    `pairs`, `key`: from `Markers.keys`; returns a row of `pairs`.
    """
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
