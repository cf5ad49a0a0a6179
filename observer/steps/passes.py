"""Find how many gradient updates make an optimiser step, under gradient accumulation. Pure.

Every pass looks like an update, but the thread is seen in its optimiser after every k-th pass only.
If the optimiser ran after each pass, it would be seen after every kind of them; that only some
kinds are seen by chance must be unlikely (`_CHANCE`). Sightings of all ranks count together. Which
k:

rounds     where the ranks exchange something in or after every k-th pass only, that gives k, and the passes, before optimiser sightings
           are counted: few sightings suffice. None are needed where the exchange comes from a loop that encloses the loop
           of the passes: then that one turns once per exchange. A job that trains by itself and averages now and then (local SGD)
           has the same rounds, but it is seen in its optimiser outside of them
phases     elsewhere the largest k for which nearly all (`AGREEMENT`) of the sightings fall into one phase of k
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from rankscope.observer.steps import loops
from rankscope.observer.steps.found import MIN_REPEATS, SeenUpdates
from rankscope.observer.steps.markers import Markers
from rankscope.probes.base.arrays import Bools, Floats, Ints

AGREEMENT = 0.9
_MOST_PASSES = 64
_CHANCE = (
    1 / 128
    # that a job whose optimiser runs after every update looks like one that accumulates: a wrong step
    # for a whole window
)


def seen(markers: Markers, update: Bools) -> SeenUpdates:
    """Count a rank's updates (mask `update` of `markers`), and find those after which it optimised or exchanged.

    Numbers the updates that were the last before a sighting in the optimiser (except the final
    one), and those that had begun last before an exchange with other ranks.
    """
    start_s, done_s = markers.start_s[update], np.maximum.accumulate(markers.end_s[update])
    exchanging = ~markers.of(markers.backward | markers.level)
    exchange_s = np.concatenate((markers.start_s[exchanging], markers.unmarked_s))
    exchanged = _last_before(start_s, exchange_s)
    return SeenUpdates(
        count=len(done_s),
        optimised=np.setdiff1d(_last_before(done_s, markers.optimiser_s), [len(done_s) - 1]),
        exchanged=exchanged,
        held=_round(exchanged) > 1 and _encloses_updates(markers, update, exchanging, len(exchanged)),
    )


def _last_before(update_s: Floats, time_s: Floats) -> Ints:
    """Return the numbers of the updates that were the last before any of these times, ascending."""
    at = np.unique(np.searchsorted(update_s, time_s, side="right") - 1)
    return at[at >= 0].astype(np.int64)


def _encloses_updates(markers: Markers, update: Bools, exchanging: Bools, rounds: int) -> bool:
    """Tell whether a call made in nearly every round comes from a loop that encloses the loop of the updates.

    `update`, `exchanging`: masks of the markers; only `exchanging` calls are tried. `rounds`: how
    many updates had an exchange.
    """
    around = loops.chains(markers.paths)
    inner = loops.usual_chain(markers, around, update)
    update_s = markers.start_s[update]
    _, key = markers.keys()
    for one in np.unique(key[exchanging]).tolist():
        mine = key == one
        often = len(_last_before(update_s, markers.start_s[mine])) >= AGREEMENT * rounds
        if often and loops.holds(loops.usual_chain(markers, around, mine), inner):
            return True
    return False


def common(ranks: Sequence[SeenUpdates]) -> int:
    """Return the updates per optimiser step, from the observations of all ranks; 1: no accumulation; 0: no updates."""
    told = [each for each in ranks if each.count]
    if not told:
        return 0
    rounds = {_round(each.exchanged) for each in told} - {0}
    passes = rounds.pop() if len(rounds) == 1 else 1
    return passes if passes > 1 and _optimised_in_rounds(told, passes) else _by_phases(told)


def last_of_each(updates: SeenUpdates, passes: int) -> Ints:
    """Return the numbers of the updates that end an optimiser step of `passes` updates."""
    if passes > 1 and _round(updates.exchanged) == passes:
        return updates.exchanged
    after = updates.optimised % passes
    phase = int(np.bincount(after).argmax()) if len(after) else passes - 1
    return np.arange(phase, updates.count, passes)


def _round(exchanged: Ints) -> int:
    """Return the number of updates from one exchange to the next; 1 if it varies, 0 if there are too few exchanges.

    `exchanged`: numbers of the updates with an exchange. Also 1 where it exceeds `_MOST_PASSES`.
    """
    apart = np.diff(exchanged)
    if len(apart) < MIN_REPEATS:
        return 0
    usual = int(np.median(apart))
    return usual if usual <= _MOST_PASSES and np.mean(apart == usual) >= AGREEMENT else 1


def _optimised_in_rounds(ranks: Sequence[SeenUpdates], passes: int) -> bool:
    """Tell whether optimisers were seen nearly only after updates with an exchange, and hardly by chance.

    `passes`: updates per exchange. Chance is not considered where a rank's exchange comes from a
    loop around that of the updates (`held`).
    """
    inside = sum(len(np.intersect1d(each.optimised, each.exchanged)) for each in ranks)
    sightings = sum(len(each.optimised) for each in ranks)
    outside = sightings - inside
    if outside > (1 - AGREEMENT) * sightings:
        return False
    by_chance = float(comb(sightings, outside) * float(passes) ** -inside)
    return by_chance <= _CHANCE or any(each.held for each in ranks)


def _by_phases(ranks: Sequence[SeenUpdates]) -> int:
    """Return the largest number of updates per step that explains the sightings in optimisers; 1 if none does.

    Nearly all sightings of a rank must fall into one phase of it, and that be unlikely by chance.
    """
    best, told = 1, [each.optimised for each in ranks if len(each.optimised)]
    sightings = sum(len(after) for after in told)
    # a longer step would occur too seldom in the window, which is reported elsewhere
    most = max(each.count for each in ranks) - 1
    for passes in range(2, min(_MOST_PASSES, most) + 1):
        outside = sightings - sum(int(np.bincount(after % passes).max()) for after in told)
        if outside <= (1 - AGREEMENT) * sightings and _by_chance(passes, sightings - len(told), outside) <= _CHANCE:
            best = passes
    return best


def _by_chance(phases: int, sightings: int, outside: int) -> float:
    """Bound the probability that all but `outside` sightings fall by chance into one of `phases` phases, or of more.

    One sighting per rank, which fixes the phase, is not counted in `sightings`. sum over k >=
    phases of k^-n <= phases^-n (1 + phases / (n - 1)).
    """
    inside = sightings - outside
    if inside < 2:
        return 1.0
    return float(comb(sightings, outside) * phases**-inside * (1 + phases / (inside - 1)))
