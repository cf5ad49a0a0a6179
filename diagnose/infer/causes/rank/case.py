"""A case: one rank whose own time is too long, with its functions and counters and its peers'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import Hypothesis
from rankscope.diagnose.infer.fleet.counters import Counter
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.attribute import Located, Profiles
from rankscope.diagnose.infer.model.functions import FunctionExcess, sample
from rankscope.diagnose.infer.model.own_threads import OwnThreads, own_threads
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.probes.base.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Case:
    """Facts about one rank that is slower than its peers, as means over its steps in the window.

    `peers`: rows of its role that are not suspects.
    `beside`: rows whose medians its functions are compared with: the peers; with more than
        limits.PEERS_EXACT also the rank itself unless it is a suspect, so that they are the same
        for every rank.
    `excess_s`: busy time per step above the peers', by its patterns (by its steps where it has
        none).
    `in_window_s`: the same by its steps, a plain mean over the whole window as patterns are; the
        judged part may be only the later one.
    `queue_of_function_s`: run-queue wait that accompanies the odd Python function. A rank that
        computes for longer queues for longer: as long per second of computing as its peers, and at
        most its queueing in that function.
    `threads`: what other threads of its process do and take; its queue for a CPU is without that of
        the function.
    """

    fleet: Fleet
    rank: int  # row in fleet.ranks
    peers: Ints
    beside: Ints  # rows whose medians its functions are compared with
    profiles: Profiles
    steps: int
    own_s: float
    excess_s: float
    in_window_s: float
    sched_excess_s: float
    io_excess_s: float
    sync_excess_s: float
    functions: tuple[FunctionExcess, ...]
    python: Located | None  # location of its excess of Python time
    queue_of_function_s: float = 0.0
    threads: OwnThreads = field(default_factory=OwnThreads)
    suspects: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # rows of other ranks that are suspects

    @property
    def host(self) -> str:
        return self.fleet.ranks.host[self.rank]

    def excess_of(self, kind: str, detail: str | None = None) -> float:
        """Sum of the excesses of all functions of a kind, seconds per step; negative ones count."""
        return sum(f.excess_s for f in self.functions if f.kind == kind and (detail is None or f.detail == detail))

    def counters(self, name: str, scopes: Iterable[str] = ()) -> Iterator[Counter]:
        """Yield this rank's counters of a name, optionally of some scopes only."""
        wanted = tuple(scopes)
        for counter in self.fleet.counters.of(name, self.rank):
            if not wanted or counter.scope in wanted:
                yield counter

    def peers_of(self, name: str) -> list[Counter]:
        """Return the counters of this name of the rank's peers; of a sample of peers in a large fleet."""
        return list(self.fleet.counters.of(name, sample(self.peers)))

    def host_counters(self, name: str) -> Iterator[Counter]:
        """Yield the counters of this name of the rank's host that belong to no rank."""
        host = self.fleet.ranks.observed_on[self.rank]
        return (counter for counter in self.fleet.counters.of(name, -1) if counter.observed_on == host)

    def charge(
        self, component: str, cause: str, lost_s: float, support: float, evidence: tuple[Evidence, ...], action: str = "",
        instance: str = "", function: Function | None = None, computing_s: float = 0.0,
    ) -> Hypothesis:  # fmt: skip
        """Return the hypothesis that a component took `lost_s` seconds per step of the rank's excess.

        `computing_s`: the part of them that is growth of computing Python functions.
        """
        return Hypothesis(
            component=component,
            cause=cause,
            rows=(self.rank,),
            lost_s=lost_s,
            support=support,
            evidence=evidence,
            action=action,
            host=self.host,
            instance=instance,
            function=function,
            computing_s=computing_s,
        )


def case_of(fleet: Fleet, scene: Scene, profiles: Profiles, row: int, suspects: Ints) -> Case:
    """Build the case of one rank (row), compared with its peers that are not suspects.

    `suspects`: rows that are suspects.
    """
    peers = innocent_peers(scene, row, suspects)
    beside = (
        peers
        if len(peers) <= limits.PEERS_EXACT or row in suspects
        else np.insert(peers, np.searchsorted(peers, row), row)
    )
    steps = fleet.steps

    def apart(name: str) -> Floats:
        """Return the rank's values of this column of the steps less its peers' usual ones, in seconds by step."""
        gap: Floats = getattr(steps, name)[row] - profiles.usual_steps(name, beside)
        return gap

    def excess(name: str) -> float:
        """Return the trimmed mean of the rank's excess over its peers in this column of the steps; 0 if unknown."""
        return float(np.nan_to_num(trimmed_mean(apart(name)[None, :])[0]))

    functions = profiles.functions(row, beside)
    own = float(np.nan_to_num(np.nanmean(steps.own_s[row]))) if np.isfinite(steps.own_s[row]).any() else 0.0
    by_steps = excess("own_s")
    gap = apart("own_s")
    by_patterns = sum(function.excess_s for function in functions)
    whole = by_patterns if by_patterns >= 0.5 * by_steps else max(by_steps, by_patterns)
    python: Located | None = profiles.locate(row, beside, ("python",), max(whole, 0.0) / own if own > 0 else 0.0)
    queue_of_function_s = _queue_of(python, profiles, row, beside)
    threads = own_threads(fleet, profiles, row, beside)
    behind_s = threads.behind_s - queue_of_function_s
    return Case(
        queue_of_function_s=queue_of_function_s,
        threads=replace(threads, behind_s=behind_s if behind_s >= limits.FEW * whole else 0.0),
        fleet=fleet,
        rank=row,
        peers=peers,
        beside=beside,
        profiles=profiles,
        steps=int(np.isfinite(steps.seconds[row]).sum()),
        own_s=own,
        excess_s=whole,
        in_window_s=float(np.nan_to_num(np.nanmean(gap))) if np.isfinite(gap).any() else 0.0,
        sched_excess_s=excess("sched_s"),
        io_excess_s=excess("io_s"),
        sync_excess_s=excess("sync_s"),
        functions=functions,
        python=python,
        suspects=suspects[suspects != row],
    )


def _queue_of(python: Located | None, profiles: Profiles, row: int, peers: Ints) -> float:
    """Return the seconds per step of run-queue wait that accompany the odd Python function; 0 without one.

    See `Case.queue_of_function_s`.
    """
    if python is None or python.spread or not len(peers):
        return 0.0
    in_it = profiles.excess_through(row, peers, "sched", python.function)
    return min(max(in_it, 0.0), python.excess_s * profiles.queue_per_second(peers))


def innocent_peers(scene: Scene, row: int, suspects: Ints) -> Ints:
    """Return the peers (rows) of a rank that are not suspects; all its peers if none is left."""
    peers = np.flatnonzero(scene.roles == scene.roles[row])
    peers = peers[peers != row]
    innocent: Ints = peers[~np.isin(peers, suspects)]
    return innocent if len(innocent) else peers
