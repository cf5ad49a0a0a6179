"""A case: one rank whose own time is too long; and a charge: one component that may be the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diagnose.attribute import Function, FunctionExcess, Located, Profiles
from diagnose.fleet import Counter, Fleet, Ints
from diagnose.verdict import Evidence

# Support of a charge, and so a factor of its confidence.
CONVICTED = 1.0  # a counter on the same component says why
SEEN = 0.95  # the function itself is the evidence: nothing else is needed
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
        """Counters of this rank, then of its host."""
        wanted = tuple(scopes)
        for counter in self.fleet.counters:
            if counter.name == name and counter.rank == self.rank and (not wanted or counter.scope in wanted):
                yield counter

    def peers_of(self, name: str) -> list[Counter]:
        """The same counter of the rank's peers."""
        peers = set(self.peers.tolist())
        return [counter for counter in self.fleet.counters if counter.name == name and counter.rank in peers]

    def host_counters(self, name: str) -> Iterator[Counter]:
        host = self.fleet.ranks.observed_on[self.rank]
        for counter in self.fleet.counters:
            if counter.name == name and counter.rank < 0 and counter.observed_on == host:
                yield counter


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
