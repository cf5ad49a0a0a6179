"""What ranks cost that are slow without CPU queues, in the step as it was, with them.

loss  = max(longer · calm, healed): the same share of the step as without queues, or how much
        shorter it were if these ranks were as fast as their peers and queued as they do
price = max(beside, healed), as reported:
beside = E max(x - U, 0), U uniform in 0..u
x      = calm · own / (own - queue): with the queueing of these ranks themselves
u      = how much less of the step they queue than their peers

The longer queueing of the others is where they wait for these ranks, and hides them, or before
other collectives, and does not; which was not observed.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.behind import behind_each, without
from rankscope.diagnose.infer.model.replay import in_order_of, repaired, shrink
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.stats.robust import mean_of_known, median
from rankscope.probes.base.arrays import Ints


def price_of(fleet: Fleet, scene: Scene, ranks: Ints, calm_s: float, longer: float) -> tuple[float, float]:
    """(loss, price) in seconds per step of ranks that together cost `calm_s` without CPU queues.

    `longer`: length of a step with queues over that without.
    """
    healed_s = _healed_s(fleet, scene, ranks)
    return max(longer * calm_s, healed_s), max(beside_queues_s(scene, ranks, calm_s), healed_s)


def beside_queues_s(scene: Scene, ranks: Ints, calm_s: float) -> float:
    """Seconds per step that these ranks cost beside the queues: beside of the header."""
    others = np.setdiff1d(np.flatnonzero(np.isin(scene.roles, scene.roles[ranks])), ranks)
    if scene.queue_s is None or not len(others):
        return calm_s
    queue_s, own_s = median(scene.queue_s[ranks]), median(mean_of_known(scene.own[ranks]))
    late_s = calm_s * own_s / max(own_s - queue_s, calm_s)
    spared_s = max(median(scene.queue_s[others]) - queue_s, 0.0)
    return late_s - spared_s / 2 if late_s >= spared_s else late_s**2 / (2 * spared_s)


def _healed_s(fleet: Fleet, scene: Scene, ranks: Ints) -> float:
    """Seconds per step regained if these ranks were as fast as their peers, and queued as they do."""
    own, roles = scene.own, scene.roles
    better = without(own, behind_each(fleet, own, roles, ranks))
    healed = repaired(better, roles, ranks)[ranks]
    better[ranks] = in_order_of(own[ranks], healed)
    return shrink(own, better, scene.pipelines, scene.busy_s)
