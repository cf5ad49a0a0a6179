"""Long-term record of each component over all jobs: a GPU, a host, a port, a PCIe device.

In each job and window every rank votes by its place among its peers, however small its excess. A
component that is always a little slow has a high place in job after job, in any host and under any
name: it is identified by the GPU's UUID or the machine id. All is in one SQLite file with the table

votes      one row per component and job: normal score and number of peers, mean over the windows
           (`../stats/detector.py` evaluates them)

A vote counts once per position, that is job title and rank number: rank 0 may be slower because it
is rank 0, and a job restarted on the same hosts adds nothing. A component seen in one position only
is never named. Named are components with M >= h, h = (components) · (votes of each in WEEKS weeks):
on average one false name in that many weeks of the fleet.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.stats import detector
from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Floats
from rankscope.probes.base.clocks import NEVER_SO_LONG_S
from rankscope.probes.base.errors import OutputFailed
from rankscope.probes.base.folders import create_file, opened_folder

WEEKS = 1000.0  # average time of the fleet per false name
PEERS_LEAST = 4  # with fewer a place is meaningless
_WEEK_S = budgets.DAY_S * 7
_KEPT_S = _WEEK_S * 26  # half a year
_TABLE = """create table if not exists votes (
    kind text not null, component text not null, job text not null, position text not null, host text not null, start real not null,
    score real not null, peers integer not null, excess real not null, windows integer not null, primary key (kind, component, job)
) without rowid"""


@dataclass(frozen=True, slots=True)
class Vote:
    """A component's score in one window of a job.

    `position`: job title and rank number; `excess`: over its peers, as a share of the step.
    """

    kind: str  # gpu | host | port | pcie
    component: str
    job: str
    position: str
    host: str
    start: float
    score: float
    peers: int
    excess: float


@dataclass(frozen=True, slots=True)
class Repute:
    """Record of one component.

    `nats`: ln M; `needed`: threshold for it; `excess`: median share of the step.
    """

    kind: str
    component: str
    host: str  # last host
    jobs: int
    excess: float
    nats: float
    needed: float

    @property
    def named(self) -> bool:
        """Whether it is reliably a little slow in all jobs."""
        return self.nats >= self.needed


class Reputations:
    """The SQLite file of votes. Its methods raise OutputFailed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, votes: Iterable[Vote], now_s: float) -> int:
        """Store these votes, each once, and delete expired ones; return how many were new.

        `now_s`: Unix time. Votes of one component and job are averaged over the job's windows.
        """
        with self._opened() as base:
            before, newest_s = _count(base), _newest_s(base, now_s)
            base.executemany(
                # mean over the windows of a job; a repeated window is not newer
                "insert into votes values (:kind, :component, :job, :position, :host, :start, :score, :peers, :excess, 1)"
                " on conflict do update set score = (score * windows + excluded.score) / (windows + 1),"
                " excess = (excess * windows + excluded.excess) / (windows + 1), windows = windows + 1,"
                " start = excluded.start, host = excluded.host where excluded.start > start",
                [{name: getattr(vote, name) for name in Vote.__slots__} for vote in votes],
            )
            new = _count(base) - before
            # Delete nothing if a clock years ahead makes all votes look old.
            if newest_s is None or now_s - newest_s <= NEVER_SO_LONG_S:
                base.execute("delete from votes where start < ?", (now_s - _KEPT_S,))
            return new

    def all(self) -> list[Repute]:
        """Return the record of every component over all its jobs, worst first."""
        if not self.path.exists():
            return []
        with self._opened() as base:
            rows = base.execute(
                "select kind, component, position, host, start, score, peers, excess from votes"
                # skip invalid rows of a damaged file
                " where typeof(kind) || typeof(component) || typeof(position) || typeof(host) = 'texttexttexttext'"
                " and typeof(start) || typeof(score) || typeof(excess) = 'realrealreal' and typeof(peers) = 'integer' and peers >= ?"
                " order by kind, component, start, job",
                (PEERS_LEAST,),
            ).fetchall()
        found = [
            one
            for kind in sorted({row[0] for row in rows})
            for one in _of_kind(kind, [row for row in rows if row[0] == kind])
        ]
        return sorted(found, key=lambda one: (one.needed - one.nats, one.kind, one.component))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database; make the file (0600) and the table if missing. Commits at the end.

        Raises OutputFailed.
        """
        try:
            with opened_folder(self.path.parent, make=True) as place:
                if not self.path.exists():
                    os.close(create_file(place, self.path.name))  # 0600 before anything is written
                with closing(sqlite3.connect(self.path, timeout=30.0)) as base, base:
                    base.execute(_TABLE)
                    yield base
        except (OSError, sqlite3.Error, UnicodeError, MemoryError) as error:
            raise OutputFailed(f"cannot keep reputations in {self.path}: {error}") from error


def _newest_s(base: sqlite3.Connection, now_s: float) -> float | None:
    """Unix time of the newest vote that is not in the future; None if none."""
    found: float | None = base.execute(
        "select max(start) from votes where typeof(start) = 'real' and start <= ?", (now_s,)
    ).fetchone()[0]
    return found


def _count(base: sqlite3.Connection) -> int:
    """Number of stored votes."""
    return int(base.execute("select count(*) from votes").fetchone()[0])


def _of_kind(kind: str, rows: list[tuple[str, str, str, str, float, float, int, float]]) -> Iterator[Repute]:
    """Yield the record of each component of one kind.

    `rows`: votes of each component in order of time, as (kind, component, position, host, start,
    score, peers, excess).
    """
    counted: dict[str, list[tuple[str, str, str, str, float, float, int, float]]] = {}
    for row in rows:
        mine = counted.setdefault(row[1], [])
        if all(row[2] != other[2] for other in mine):
            mine.append(row)
    needed = needed_nats(len(counted), sum(map(len, counted.values())), [row[4] for row in rows])
    for component, mine in counted.items():
        state = np.zeros((1, len(detector.SHIFTS)))
        for row in mine:
            state = detector.followed(state, detector.evidence(np.array([row[5]]), row[6]))
        nats = float(detector.combined(state)[0])
        yield Repute(kind, component, mine[-1][3], len(mine), median([row[7] for row in mine]), nats, needed)


def needed_nats(components: int, votes: int, starts: list[float]) -> float:
    """Return the threshold ln h for the evidence against a component.

    h: votes that all components cast in WEEKS weeks at the present pace. `starts`: Unix times of
    the votes.
    """
    weeks = max((max(starts) - min(starts)) / _WEEK_S, 1.0) if starts else 1.0
    return float(np.log(max(votes / weeks, components, 1) * WEEKS))


def votes_of(
    kind: str, job: str, start: float, names: list[str], positions: list[str], hosts: list[str], excess: Floats
) -> list[Vote]:
    """Make the votes of one group of peers in one window; none with fewer than PEERS_LEAST.

    `names`, `positions`, `hosts`, `excess`: one per component; excess as a share of the step.
    Unnamed ones are compared, and do not vote.
    """
    known = np.flatnonzero(np.isfinite(excess))
    if len(known) < PEERS_LEAST:
        return []
    scores = detector.normal_scores(excess[known])
    return [
        Vote(kind, names[at], job, positions[at], hosts[at], start, float(score), len(known), float(excess[at]))
        for at, score in zip(known.tolist(), scores.tolist(), strict=True)
        if names[at]
    ]
