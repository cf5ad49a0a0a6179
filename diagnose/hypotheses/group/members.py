"""Who else belongs to a group that is accused: ranks of its hosts that are slow for the same reason, though each alone could not be told.

A rank alone must prove its excess against all ranks that were looked at. Of a group that is accused, half of whom have the fault, only
its few other ranks are asked, and each as likely has it as not: for it the excess must be no accident,

strength(r) >= -ln 1 %, excess(r) >= floor        (`../../model/excess.py`)

half of it must be waited for by the peers, and explained by the same mechanism. So a host of which most ranks are accused, and a group of
hosts, are named whole. Of fleets of up to limits.PEERS_EXACT ranks nobody is asked again: each was told from few.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.rank.case import case_of
from rankscope.diagnose.hypotheses.rank.table import charges
from rankscope.diagnose.model.attribute import Profiles
from rankscope.diagnose.model.excess import strength
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.model.waiting import waited_for
from rankscope.diagnose.verdict.contract import Suspect
from rankscope.probes.arrays import Floats, Ints

_STRONG = -math.log(limits.FALSE_DISCOVERY_RATE)  # nats


@dataclass(slots=True)
class Members:
    """Asks the ranks of a fleet. `scene`: with the differences beside those that are not accused."""

    fleet: Fleet
    scene: Scene
    _strength: Floats | None = None
    _profiles: Profiles | None = None

    def of_hosts(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """The suspects; where most ranks of one host are one, with those of its others that are slow alike."""
        accused = frozenset(rank for each in suspects for rank in each.ranks)
        found: list[Suspect] = []
        for each in suspects if self._many() else ():
            here = self.fleet.ranks.host.count(each.host) if each.scope == "rank" and len(each.ranks) > 1 else 0
            whole = here > 0 and len(each.ranks) >= limits.HOLDS_LEAST * here
            found.append(self.joined(each, (each.host,), accused) if whole else each)
        return found or list(suspects)

    def joined(self, suspect: Suspect, hosts: Collection[str], accused: Collection[int] = ()) -> Suspect:
        """The suspect with the ranks of these hosts that are slow for its reason; who is `accused` already is not asked."""
        if not self._many():
            return suspect
        fleet, found = self.fleet, self.scene.differences
        if self._strength is None:
            self._strength = strength(found)
        taken = np.isin(fleet.ranks.number, [*suspect.ranks, *accused])
        there = np.array([host in hosts for host in fleet.ranks.host], dtype=bool)
        asked = there & ~taken & (self._strength >= _STRONG) & (found.excess_s >= found.floor_s)
        waited_s = waited_for(self.scene.wait, self.scene.roles, ~(taken | asked))
        asked &= waited_s >= limits.HOLDS_LEAST * found.excess_s
        rows: Ints = np.flatnonzero(asked)
        left_out = np.flatnonzero(taken | asked)
        more = [int(fleet.ranks.number[row]) for row in rows.tolist() if self._is_so(suspect, row, left_out)]
        return replace(suspect, ranks=tuple(sorted({*suspect.ranks, *more}))) if more else suspect

    def _many(self) -> bool:
        return max(len(self.fleet.ranks), self.fleet.looked_at) > limits.PEERS_EXACT

    def _is_so(self, suspect: Suspect, row: int, accused: Ints) -> bool:
        """Whether the mechanism of the suspect explains half of this rank's excess."""
        if self._profiles is None:
            self._profiles = Profiles(self.fleet)
        case = case_of(self.fleet, self.scene, self._profiles, row, accused)
        alike = [each for each in charges(case) if (each.component, each.cause) == (suspect.component, suspect.cause)]
        return max((each.lost_s for each in alike), default=0.0) >= limits.HOLDS_LEAST * case.excess_s
