"""For a job without steps: the place of each rank, what it waits for there, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.still.starting import is_starting
from rankscope.diagnose.infer.model.still.whereabouts import Place, place_of
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import minutes, rank_list


def places(fleet: Fleet, more: str) -> tuple[str, bool]:
    """(places of the ranks without a step, in words; whether the step may only be long).

    '' where nothing was seen of them. `more`: advice for a step that is only long.
    """
    rows = np.arange(len(fleet.ranks))
    if fleet.steps.count:
        rows = rows[~np.isfinite(fleet.steps.seconds).any(axis=1)]
    at: dict[Place, list[tuple[int, float]]] = {}
    for row in rows[: limits.PEERS_SAMPLED].tolist():
        found = place_of(fleet.patterns, row)
        if found is not None:
            at.setdefault(found[0], []).append((row, found[1]))
    told = sorted(at.items(), key=lambda item: -len(item[1]))[: budgets.TOLD]
    if not told:
        return "", True
    starting = is_starting(fleet)
    said = [_told(fleet, place, ranks) for place, ranks in told] + (_awaited(fleet, at) if starting else [])
    said += _started(fleet, starting)
    long = any(place.at_work for place, _ in told) and not any(place.held for place, _ in told)
    if long and not starting:
        said.append(f"if a step takes longer than that, {more}")
    return "; ".join(said), long


def _awaited(fleet: Fleet, at: dict[Place, list[tuple[int, float]]]) -> list[str]:
    """Words on the ranks that others wait for: those that wait for no rank, and unobserved ones."""
    seen = [(place, int(fleet.ranks.number[row])) for place, ranks in at.items() for row, _ in ranks]
    waiting = tuple(sorted(number for place, number in seen if place.for_ranks))
    absent = [number for place, number in seen if not place.for_ranks]
    absent += fleet.ranks.missing().tolist() if not fleet.looked_at else []
    if not waiting or not absent:
        return []
    verb = "waits" if len(waiting) == 1 else "wait"
    return [f"{rank_list(waiting)} {verb} for {rank_list(tuple(sorted(absent)))}"]


def _started(fleet: Fleet, starting: bool) -> list[str]:
    """Words on when the job was started, and when a start becomes a hang."""
    age_s = fleet.ranks.age_s
    if age_s is None or not np.isfinite(age_s).any():
        return []
    text = f"the job was started {minutes(float(np.nanmedian(age_s)))} before"
    if starting:
        text += f" the window, and no rank has ended a step or a collective: a start is called a hang after {minutes(limits.START_SECONDS)}"
    return [text]


def _told(fleet: Fleet, place: Place, ranks: Sequence[tuple[int, float]]) -> str:
    """Say where these ranks are and for how long: 'ranks 0-3 wait in load (utils.py:12) for files (read), …'.

    `ranks`: (row, share of the window there) of each.
    """
    share = median([share for _, share in ranks])
    how_long = "for the whole window" if share >= 1 - limits.EFFECT_SHARE else f"for {100 * share:.0f} % of the window"
    numbers = tuple(int(fleet.ranks.number[row]) for row, _ in ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]} {place.of_one}, {how_long}"
    who = f"all {len(numbers)} ranks" if len(numbers) == len(fleet.ranks) else rank_list(numbers)
    return f"{who} {place.text}, {how_long}"
