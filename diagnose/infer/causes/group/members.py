"""Further ranks of a suspect group: slow for the same reason, but each alone not clearly enough.

A single rank must prove its excess against all ranks that were examined. In a group at least half
of whose ranks have the fault, only the few remaining ranks are tested, and each is as likely to
have the fault as not. Such a rank must satisfy

strength(r) >= -ln 1.4 %, excess(r) >= floor        (`../../model/excess.py`)

its peers must wait for half of the excess, and the same mechanism must explain half of it. This
completes hosts most of whose ranks are suspects, and groups of hosts. In fleets of up to
limits.PEERS_EXACT ranks nothing is added: each rank was tested among few.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.rank.case import case_of
from rankscope.diagnose.infer.causes.rank.table import charges
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.attribute import Profiles
from rankscope.diagnose.infer.model.excess import strength
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.waiting import waited_for
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.probes.base.arrays import Floats, Ints

_STRONG = -math.log(limits.FALSE_DISCOVERY_RATE)  # nats


@dataclass(slots=True)
class Members:
    """Find further ranks of a fleet that share a suspect's cause.

    `scene`: differences computed against ranks that are not suspects.
    """

    fleet: Fleet
    scene: Scene
    _strength: Floats | None = None
    _profiles: Profiles | None = None

    def of_hosts(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Extend each suspect that covers at least half of a host's ranks to that host's other slow ranks."""
        accused = frozenset(rank for each in suspects for rank in each.ranks)
        found: list[Suspect] = []
        for each in suspects if self._many() else ():
            here = self.fleet.ranks.host.count(each.host) if each.scope == "rank" and len(each.ranks) > 1 else 0
            whole = here > 0 and len(each.ranks) >= limits.HOLDS_LEAST * here
            found.append(self.joined(each, (each.host,), accused) if whole else each)
        return found or list(suspects)

    def joined(self, suspect: Suspect, hosts: Collection[str], accused: Collection[int] = ()) -> Suspect:
        """Add to a suspect the ranks of these hosts that are slow for the same reason.

        `accused`: numbers of ranks that are suspects already; they are not tested.
        """
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
        """Return whether the job has more than limits.PEERS_EXACT ranks; in smaller ones no members are added."""
        return max(len(self.fleet.ranks), self.fleet.looked_at) > limits.PEERS_EXACT

    def _is_so(self, suspect: Suspect, row: int, accused: Ints) -> bool:
        """Whether the suspect's mechanism explains half of this rank's excess."""
        if self._profiles is None:
            self._profiles = Profiles(self.fleet)
        case = case_of(self.fleet, self.scene, self._profiles, row, accused)
        alike = [each for each in charges(case) if (each.component, each.cause) == (suspect.component, suspect.cause)]
        return max((each.lost_s for each in alike), default=0.0) >= limits.HOLDS_LEAST * case.excess_s
