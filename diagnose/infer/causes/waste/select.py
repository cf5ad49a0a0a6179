"""Propose waste, and select it beside the causes by which ranks differ.

gain(W | F) = how much shorter a mean step is without the rows of waste W and the admitted rows F,
              less the same without F alone (../rows.py)

1. Every function of a `Spending` is asked once.
2. While some row gains less than its floor beyond the others, drop the one that gains least. Floors
   are shares of the mean step: waste may be rare, and the mean is what comes back.
3. Divide the gain of the whole set by what each gains beyond the others.

What differs comes first: a row of waste never changes which rows of other causes stand, nor their
price. What single ranks lose that are slower than their peers for a known cause is that cause's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import SCORE_MOST, suspect_from, with_gain
from rankscope.diagnose.infer.causes.registry import proposers
from rankscope.diagnose.infer.causes.rows import Row, gain_s, ranks_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.model.replay import share_out
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.verdict.contract import Suspect


def select_waste(spending: Spending, found: Sequence[Row]) -> tuple[Row, ...]:
    """Propose waste and select it beside the admitted rows `found`; largest first, with lost time."""
    rows = [row for ask in proposers(Spending) for row in ask(spending)]
    slow = set(ranks_of(row for row in found if row.found.scope == "rank").tolist())
    rows = [row for row in rows if row.found.scope != "rank" or not slow.issuperset(row.found.rows)]
    chosen = sorted(rows, key=lambda row: (-row.taken.most_s, row.found.component, row.found.cause))
    step_s, scene = spending.step_s, spending.scene
    while chosen:
        whole = _beside(scene, chosen, found)
        gained = np.array([whole - _beside(scene, chosen[:i] + chosen[i + 1 :], found) for i in range(len(chosen))])
        over = gained - np.array(
            [max(row.floor.share * step_s, scene.least_s, limits.EFFECT_SECONDS) for row in chosen]
        )
        least = int(np.argmin(over))
        if over[least] >= 0:
            lost = share_out(whole, gained).tolist()
            named = [
                replace(row, found=replace(row.found, lost_s=each)) for row, each in zip(chosen, lost, strict=True)
            ]
            return tuple(sorted(named, key=lambda row: -row.found.lost_s))
        del chosen[least]
    return ()


def _beside(scene: Scene, rows: Sequence[Row], found: Sequence[Row]) -> float:
    """Return the seconds per mean step gained without these rows, beyond what `found` gains."""
    return gain_s(scene, [*found, *rows], told=True) - gain_s(scene, list(found), told=True)


def suspects_of(spending: Spending, rows: Sequence[Row]) -> list[Suspect]:
    """Convert selected rows of waste to suspects; shares are of the mean step."""
    step_s, made = spending.step_s, []
    for row in rows:
        found = with_gain(replace(row.found, lost_s=min(row.found.lost_s, step_s)), step_s)
        suspect = suspect_from(spending.fleet, found, step_s, min(row.found.support, SCORE_MOST))
        made.append(replace(suspect, waste=True))
    return made
