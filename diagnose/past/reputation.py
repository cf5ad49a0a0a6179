"""What each component was like in all jobs it worked in: a GPU, a host, a port, a PCIe device. One SQLite file.

In each job and window every rank has a place among its peers by its excess: nothing is thrown away because it is too small to accuse.
A component that is a little slow, always, has a high place in one job after the other, in whatever host it is plugged in and whatever
that is called: its name is the GPU's UUID, the machine's id.

votes      one row for each component and job: its normal score among how many peers, the mean over the job's windows
           (`../stats/detector.py` says what is made of these)

A vote counts once for each position, that is a job's title and the rank's number: rank 0 may be slower because it is rank 0, and a job
that is started again on the same hosts says nothing new. Who only ever stood in one position is never named.

Named is who has M >= h, h = (components) · (votes of each in WEEKS weeks): one false name in so many weeks of the fleet, on average.
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
from rankscope.probes.arrays import Floats
from rankscope.probes.errors import OutputFailed
from rankscope.probes.host.clocks import NEVER_SO_LONG_S
from rankscope.probes.host.folders import create_file, opened_folder

WEEKS = 1000.0  # of the fleet, in which one false name is one too many
PEERS_LEAST = 4  # of fewer a place says nothing
_WEEK_S = budgets.DAY_S * 7
_KEPT_S = _WEEK_S * 26  # what was half a year ago is no reputation any more
_TABLE = """create table if not exists votes (
    kind text not null, component text not null, job text not null, position text not null, host text not null, start real not null,
    score real not null, peers integer not null, excess real not null, windows integer not null, primary key (kind, component, job)
) without rowid"""


@dataclass(frozen=True, slots=True)
class Vote:
    """A component's place in one window of a job. `position`: what it did there; `excess`: of the step, above its peers."""

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
    """What is known of one component. `nats`: ln M; `needed`: from which on it is named; `excess`: median share of the step."""

    kind: str
    component: str
    host: str  # where it was last
    jobs: int
    excess: float
    nats: float
    needed: float

    @property
    def named(self) -> bool:
        """Whether it is always a little slow, beyond doubt."""
        return self.nats >= self.needed


class Reputations:
    """The file. What cannot be written is OutputFailed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, votes: Iterable[Vote], now_s: float) -> int:
        """Keep these votes, once each however often they come; how many are new. Old ones go."""
        with self._opened() as base:
            before, newest_s = _count(base), _newest_s(base, now_s)
            base.executemany(
                # the mean over the windows of a job; a window that comes again is not newer
                "insert into votes values (:kind, :component, :job, :position, :host, :start, :score, :peers, :excess, 1)"
                " on conflict do update set score = (score * windows + excluded.score) / (windows + 1),"
                " excess = (excess * windows + excluded.excess) / (windows + 1), windows = windows + 1,"
                " start = excluded.start, host = excluded.host where excluded.start > start",
                [{name: getattr(vote, name) for name in Vote.__slots__} for vote in votes],
            )
            # Where only a clock that is years ahead makes them old, as those that come now say it too, none go: all would.
            if newest_s is None or now_s - newest_s <= NEVER_SO_LONG_S:
                base.execute("delete from votes where start < ?", (now_s - _KEPT_S,))
            return _count(base) - before

    def all(self) -> list[Repute]:
        """Every component, the worst first."""
        if not self.path.exists():
            return []
        with self._opened() as base:
            rows = base.execute(
                "select kind, component, position, host, start, score, peers, excess from votes"
                # a damaged file holds anything
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
        try:
            with opened_folder(self.path.parent, make=True) as place:
                if not self.path.exists():
                    os.close(create_file(place, self.path.name))  # 0600 before anything is in it
                with closing(sqlite3.connect(self.path, timeout=30.0)) as base, base:
                    base.execute(_TABLE)
                    yield base
        except (OSError, sqlite3.Error, UnicodeError, MemoryError) as error:
            raise OutputFailed(f"cannot keep reputations in {self.path}: {error}") from error


def _newest_s(base: sqlite3.Connection, now_s: float) -> float | None:
    """When the newest vote is of, those of moments to come left out; None where there is none."""
    found: float | None = base.execute(
        "select max(start) from votes where typeof(start) = 'real' and start <= ?", (now_s,)
    ).fetchone()[0]
    return found


def _count(base: sqlite3.Connection) -> int:
    return int(base.execute("select count(*) from votes").fetchone()[0])


def _of_kind(kind: str, rows: list[tuple[str, str, str, str, float, float, int, float]]) -> Iterator[Repute]:
    """`rows`: of each component in order of time."""
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
    """ln h: as many votes as all components cast in WEEKS weeks, at the pace at which they did."""
    weeks = max((max(starts) - min(starts)) / _WEEK_S, 1.0) if starts else 1.0
    return float(np.log(max(votes / weeks, components, 1) * WEEKS))


def votes_of(
    kind: str, job: str, start: float, names: list[str], positions: list[str], hosts: list[str], excess: Floats
) -> list[Vote]:
    """The votes of one group of peers in one window; `excess`: of each, as a share of the step."""
    known = np.flatnonzero(np.isfinite(excess))
    if len(known) < PEERS_LEAST:
        return []
    scores = detector.normal_scores(excess[known])
    return [
        Vote(kind, names[at], job, positions[at], hosts[at], start, float(score), len(known), float(excess[at]))
        for at, score in zip(known.tolist(), scores.tolist(), strict=True)
        if names[at]
    ]
