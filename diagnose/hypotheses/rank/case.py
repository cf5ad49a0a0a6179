"""A case: one rank whose own time is too long; and a charge: one component that may be the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rankscope.diagnose.fleet.counters import Counter
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.attribute import FunctionExcess, Located, Profiles, sample
from rankscope.diagnose.verdict.contract import Evidence
from rankscope.diagnose.verdict.function import Function
from rankscope.probes.arrays import Ints

# Support of a charge, and so a factor of its confidence.
CONVICTED = 1.0  # a counter on the same component says why
SEEN = 0.95  # the function itself is the evidence: nothing else is needed
REPORTED = 0.85  # a counter moved on the component; what it cost cannot be told from it
NO_COUNTER = 0.75  # the behaviour fits, no counter says why
GUESS = 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """Facts about one odd rank, all as means over the rank's steps in the whole window.

    excess_s: how much longer than its peers the rank is busy per step, by its patterns (by its steps where it has none).
    """

    fleet: Fleet
    rank: int  # row in fleet.ranks
    peers: Ints
    profiles: Profiles
    steps: int
    own_s: float
    excess_s: float
    sched_excess_s: float
    io_excess_s: float
    sync_excess_s: float
    functions: tuple[FunctionExcess, ...]
    python: Located | None  # where its excess of Python time sits

    @property
    def host(self) -> str:
        return self.fleet.ranks.host[self.rank]

    def excess_of(self, kind: str, detail: str | None = None) -> float:
        """Sum of the excesses of all functions of a kind, seconds per step; negative ones count."""
        return sum(f.excess_s for f in self.functions if f.kind == kind and (detail is None or f.detail == detail))

    def counters(self, name: str, scopes: Iterable[str] = ()) -> Iterator[Counter]:
        """Counters of this name of this rank."""
        wanted = tuple(scopes)
        for counter in self.fleet.counters.of(name, self.rank):
            if not wanted or counter.scope in wanted:
                yield counter

    def peers_of(self, name: str) -> list[Counter]:
        """The same counter of the rank's peers, of a sample of them in a large fleet."""
        return list(self.fleet.counters.of(name, sample(self.peers)))

    def host_counters(self, name: str) -> Iterator[Counter]:
        """Counters of this name of the rank's host that belong to no rank."""
        host = self.fleet.ranks.observed_on[self.rank]
        return (counter for counter in self.fleet.counters.of(name, -1) if counter.observed_on == host)


@dataclass(frozen=True, slots=True)
class Charge:
    """One component accused of `explained_s` seconds per step of a rank's excess."""

    component: str
    cause: str
    explained_s: float
    support: float
    evidence: tuple[Evidence, ...]
    action: str
    instance: str = ""
    function: Function | None = None
    computing_s: float = 0.0  # of it, growth of Python functions that compute: no function is charged with it again
