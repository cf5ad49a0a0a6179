"""Tier 0 of a host: follow its ranks, choose each job's marker, and report steps as they end.

census ──► new ranks: all candidates are timed ──► one marker for the job ──► steps of each rank, from its calls
 │            for some steps, `LEARN_S` at most       (marker.py)                 (ranks.py)
 └── as processes appear that map a library of ranks, and every ten minutes

`poll` is called about once a second. It drains the probes, and reads the state of each rank;
nothing else runs meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankscope.observer.census.found import FoundRank, RankCensus
from rankscope.observer.watch.marker import MARKERS, Calls, StepMarker, choose
from rankscope.observer.watch.newcomers import Newcomers, stat_of, take_census
from rankscope.observer.watch.pulse import RING_EVENTS, Place, Pulse
from rankscope.observer.watch.ranks import NO_STEPS, Death, RankPulse, Steps
from rankscope.observer.watch.shares import (
    CROWD_EACH_S,
    LOOK_EACH_S,
    RANKS_EACH,
    RANKS_MOST,
    Looking,
    over_share,
    user_of,
)
from rankscope.probes.base.patience import SILENT, Silent, patiently
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.host import procfs

LEARN_S = 30.0
_LEARN_LEAST_S = 3.0
_LEARN_AGAIN_S = 300.0  # after a try without repetition
_LISTEN_MOST_S = 5.0  # seconds per poll for searching libraries; the rest waits for the next one
_WRITES_APART_S = 5.0
_MOST_HZ = 100.0  # calls a second and rank that a marker may cost: 0.2 % of a core at 20 µs each
# calls a second of one user, where others' are lost; a poll is about a second
_SHARE_HZ = RING_EVENTS / 4
_CALLS_MOST = 20_000  # stored for one rank while its marker is searched


@dataclass(frozen=True, slots=True)
class Beat:
    """Results of one poll.

    `steps`: by pid, of ranks whose steps are seen; `still`: pids of stopped ranks; `notes`: what is
    not seen, and why, each once.
    """

    at_s: float
    steps: dict[int, Steps]
    born: tuple[FoundRank, ...]
    died: tuple[Death, ...]
    still: frozenset[int]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Learning:
    """A job whose marker is being searched. `waiting`: pids of its ranks that are not timed yet."""

    since_s: float
    user: str
    waiting: list[int] = field(default_factory=list)
    places: set[Place] = field(default_factory=set)
    calls: dict[int, list[Calls]] = field(default_factory=dict)


@dataclass(slots=True)
class Tier0:
    """The ranks of this host. `notes`: job -> why its steps are not seen; `left_out`: ranks for
    which there is no room.
    """

    pulse: Pulse
    root: Path = Path("/")
    census: Callable[[Path], RankCensus] = take_census
    ranks: dict[int, RankPulse] = field(default_factory=dict)
    markers: dict[str, StepMarker] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    left_out: int = 0
    _looking: Looking = field(default_factory=Looking)
    _crowding: Looking = field(default_factory=Looking)
    _missed: int = 0  # losses at the last poll
    _polled_s: float = float("-inf")
    _learning: dict[str, _Learning] = field(default_factory=dict)
    _again_s: dict[str, float] = field(default_factory=dict)
    _kept: dict[str, frozenset[Place]] = field(default_factory=dict)
    _writes: dict[int, tuple[float, int]] = field(default_factory=dict)
    _newcomers: Newcomers = field(init=False)

    def __post_init__(self) -> None:
        self._newcomers = Newcomers(self.pulse, self.root)

    def poll(self) -> Beat:
        """Drain the probes, update the state of all ranks, and return what happened since the last poll."""
        now = time.monotonic()
        events = self.pulse.events.drain()
        died = self._ends(events)
        born = self._find_new(now)
        self._listen()
        calls = events[events["type"] == ring.CALL]
        steps = self._steps(calls)
        self._miss(calls, now)
        self._learn(now)
        vanished, stopped = self._states(now)
        self.pulse.tidy(now, bool(died or vanished))
        return Beat(now, steps, born, (*died, *vanished), stopped, self.pulse.notes.take(now))

    def of_job(self, job: str) -> tuple[RankPulse, ...]:
        """List a job's live ranks here, by number."""
        mine = [one for one in self.ranks.values() if one.found.identity.job == job]
        return tuple(sorted(mine, key=lambda one: one.found.identity.rank))

    def jobs(self) -> tuple[str, ...]:
        """List the jobs with ranks here."""
        return tuple(dict.fromkeys(one.found.identity.job for one in self.ranks.values()))

    def is_learning(self, job: str) -> bool:
        """Tell whether the job's marker is being searched."""
        return job in self._learning

    def close(self) -> None:
        """Close the probes."""
        self.pulse.close()

    def _ends(self, events: Events) -> tuple[Death, ...]:
        """Remove the ranks whose processes ended according to these events; return their ends."""
        found = []
        for event in events[events["type"] == ring.EXIT]:
            death = self._record_death(int(event["tgid"]), float(event["ts_ns"]) / 1e9, int(event["arg"]))
            if death is not None:
                found.append(death)
        return tuple(found)

    def _record_death(self, pid: int, at_s: float, status: int) -> Death | None:
        """Remove a rank, and with its job's last rank the job; return its end, None if it is no rank.

        `at_s`: CLOCK_MONOTONIC; `status` as from wait(2), -1 unknown. A census becomes due.
        """
        rank = self.ranks.pop(pid, None)
        if rank is None:
            return None
        self._writes.pop(pid, None)
        identity = rank.found.identity
        self._newcomers.soon()
        if not self.of_job(identity.job):
            self._drop(identity.job)
        return Death(identity.job, pid, identity.rank, at_s, status)

    def _drop(self, job: str) -> None:
        """Forget a job: marker, search and notes; detach functions that no other job needs."""
        for table in (self.markers, self._learning, self._again_s, self._kept, self.notes):
            table.pop(job, None)
        self._detach_unneeded()

    def _states(self, now: float) -> tuple[list[Death], frozenset[int]]:
        """Find ranks that ended without an event (lost, or pid reused), and pids of ranks stopped for two polls.

        Stopped means job control or a tracer. `now`: CLOCK_MONOTONIC, s.
        """
        gone, still, refused = [], set(), None
        stats = patiently(lambda: {pid: stat_of(pid, self.root) for pid in self.ranks})
        for pid, rank in list(self.ranks.items()):
            stat = stats[pid]
            if isinstance(stat, Silent):
                self.pulse.notes.add(f"pid {pid}: {SILENT}", user_of(rank.found))
                continue
            if isinstance(stat, OSError):  # a lack of resources on this host is no end of a rank
                refused = stat
                continue
            if stat is None or stat.start_ticks != rank.found.start_ticks or stat.state in ("Z", "X"):
                if not rank.missing:  # the event may be in the ring already: the next drain decides
                    rank.missing = True
                    continue
                self.pulse.forget(pid)
                death = self._record_death(pid, now, -1)
                gone += [death] if death is not None else []
            elif stat.state not in ("T", "t"):
                rank.stopped_since_s = None
            elif rank.stopped_since_s is None:
                rank.stopped_since_s = now
            else:
                still.add(pid)
        if refused is not None:
            self.pulse.postpone("it could not be read whether ranks still run", refused)
        return gone, frozenset(still)

    def write_hz(self, job: str) -> float:
        """Return the bytes a second that the job's busiest rank wrote to disk since the last call.

        0 if unknown, or if that call is `_WRITES_APART_S` ago.
        """
        now, most = time.monotonic(), 0.0
        for rank in self.of_job(job):
            pid = rank.found.pid
            written = _written(pid, self.root)
            before_s, before = self._writes.get(pid, (float("-inf"), 0))
            if written is not None:
                self._writes[pid] = now, written
                if 0 < now - before_s < _WRITES_APART_S:
                    most = max(most, (written - before) / (now - before_s))
        return most

    def _find_new(self, now: float) -> tuple[FoundRank, ...]:
        """Take a census if one is due, and watch the ranks that are new; return those.

        Their steps are counted if their job has a marker; else it is searched.
        """
        told = self._newcomers.look(self.census, self.ranks, now)
        if told is None:
            return ()
        born = self._let_in(told.ranks, now)
        for rank in born:
            job = rank.identity.job
            if job in self.markers:
                self.ranks[rank.pid].begin(self.markers[job])
            elif job not in self._learning:
                self._learning[job] = _Learning(now, user_of(rank))
            if job in self._learning:
                self._learning[job].waiting.append(rank.pid)
        return born

    def _let_in(self, ranks: Iterable[FoundRank], now: float) -> tuple[FoundRank, ...]:
        """Watch new ranks as far as there is room, with a limit per user; return those that are watched."""
        held, left = Counter(user_of(one.found) for one in self.ranks.values()), Counter[str]()
        born = []
        for rank in ranks:
            user = user_of(rank)
            if rank.pid in self.ranks:
                continue
            if held[user] >= RANKS_EACH or len(self.ranks) >= RANKS_MOST:
                left[user] += 1
                continue
            try:
                self.pulse.watch(rank.pid)
            except OSError as error:
                self._newcomers.postpone("a rank is not watched", error, now)
                continue
            self.ranks[rank.pid] = RankPulse(rank, now, now)
            held[user] += 1
            born.append(rank)
        self.left_out = sum(left.values())
        for user in left:
            self.pulse.notes.add(
                f"not all ranks of {user} are watched; limits: {RANKS_EACH} per user, {RANKS_MOST} in all",
                user,
            )
        return tuple(born)

    def _listen(self) -> None:
        """Attach to libraries of jobs whose marker is searched, for some seconds a poll, the least
        served user first.

        Beyond a user's time libraries are skipped, so that a user with thousands of slow files
        delays nobody.
        """
        until = time.monotonic() + _LISTEN_MOST_S
        while waiting := [one for one in self._learning.values() if one.waiting]:
            now = time.monotonic()
            if now >= until:
                for one in waiting:  # their time begins when all of their ranks are timed
                    one.since_s = now
                return
            learning = min(waiting, key=lambda one: self._looking.spent_s(one.user, now))
            if self._looking.spent_s(learning.user, now) >= LOOK_EACH_S:
                learning.waiting.clear()
                self.pulse.notes.add(
                    f"not all libraries of {learning.user} were searched: it took {LOOK_EACH_S:g} s in this hour",
                    learning.user,
                )
                continue
            pid = learning.waiting.pop(0)
            if pid in self.ranks:
                learning.places |= self.pulse.listen(pid, user=learning.user)
                self._looking.took(learning.user, now, time.monotonic() - now)

    def _steps(self, events: Events) -> dict[int, Steps]:
        """Pass finished calls to their ranks; return the steps that ended with them, by pid.

        Calls of jobs whose marker is searched are stored for the search instead.
        """
        if not len(events):
            return {}
        told = {}
        for pid in np.unique(events["tgid"]).tolist():
            rank = self.ranks.get(pid)
            if rank is None:
                continue
            mine = _calls(events[events["tgid"] == pid])
            learning = self._learning.get(rank.found.identity.job)
            if learning is not None:
                learning.calls.setdefault(pid, []).append(mine)
                rank.last_s = float(mine.end_s[-1])
            elif rank.marker is not None:
                steps = rank.take(mine.of(rank.marker.row))
                if steps is not NO_STEPS:
                    told[pid] = steps
        return told

    def _miss(self, calls: Events, now: float) -> None:
        """Handle lost calls: reset the ranks concerned, and stop timing those that fill the ring."""
        before, self._missed = self._missed, self.pulse.missed()
        since_s, self._polled_s = self._polled_s, now
        if self._missed == before:
            return
        for rank in self.ranks.values():
            rank.miss(now)
        users = {pid: user_of(rank.found) for pid, rank in self.ranks.items()}
        if len(set(users.values())) < 2:
            return
        seconds = min(max(now - since_s, 1.0), LEARN_S)
        pids, counts = np.unique(calls["tgid"], return_counts=True)
        told = {pid: n for pid, n in zip(pids.tolist(), counts.tolist(), strict=True) if pid in users}
        crowds = over_share(told, users, _SHARE_HZ * seconds)
        learnt = {pid for pid in crowds if self.is_learning(self.ranks[pid].found.identity.job)}
        for user in {users[pid] for pid in learnt}:
            self._crowding.took(user, now, seconds)
        for pid in crowds:
            if pid in learnt and self._crowding.spent_s(users[pid], now) <= CROWD_EACH_S:
                continue
            self.pulse.forget(pid)
            self.ranks[pid].stop_listening()
            self.pulse.notes.add(
                f"pid {pid} makes so many calls that those of others were lost: it is no longer probed, and its exit "
                "status will be unknown",
                users[pid],
            )

    def _learn(self, now: float) -> None:
        """Decide on markers of jobs observed long enough; search again where that is due. `now`: CLOCK_MONOTONIC, s."""
        for job, learning in list(self._learning.items()):
            if now - learning.since_s < _LEARN_LEAST_S:
                continue
            late = now - learning.since_s >= LEARN_S
            found = [marker for parts in learning.calls.values() if (marker := _choose(parts)) is not None]
            full = any(sum(map(len, parts)) >= _CALLS_MOST for parts in learning.calls.values())
            if len(found) < len(self.of_job(job)) and not late and not full:
                continue
            del self._learning[job]
            self._decide(job, found, learning, now)
        for job, at_s in list(self._again_s.items()):
            if now >= at_s:
                del self._again_s[job]
                self.learn_again(job)

    def learn_again(self, job: str) -> None:
        """Search the marker of a job again: its loop may have changed."""
        self.markers.pop(job, None)
        ranks = self.of_job(job)
        if not ranks:
            return
        pids = [rank.found.pid for rank in ranks]
        self._learning[job] = _Learning(time.monotonic(), user_of(ranks[0].found), pids)
        for rank in ranks:
            rank.marker = None

    def _decide(self, job: str, found: list[StepMarker], learning: _Learning, now: float) -> None:
        """Set a job's marker; or a note why it has none, and when to search again. Detach what is no longer needed.

        `found`: the markers that its ranks gave; `learning`: the search that has ended.
        """
        if not found:
            self.notes[job] = "its steps are not visible: no library call repeats with them"
        elif (marker := _common(found)).hz > _MOST_HZ:
            rarest = f"{MARKERS[marker.row].name}, comes {marker.hz:.0f} times a second"
            self.notes[job] = f"its steps are not visible: the rarest call that marks them, {rarest}"
        else:
            self.notes.pop(job, None)
            self._again_s.pop(job, None)
            self.markers[job] = marker
            self._kept[job] = frozenset(place for place in learning.places if place[0] == marker.row)
            for rank in self.of_job(job):
                rank.begin(marker)
                rank.last_s = now
        if job not in self.markers:
            self._kept.pop(job, None)
            self._again_s[job] = now + _LEARN_AGAIN_S
        self._detach_unneeded()

    def _detach_unneeded(self) -> None:
        """Detach all functions but those of chosen markers and of jobs whose marker is searched."""
        kept = {place for places in self._kept.values() for place in places}
        self.pulse.detach_others(kept.union(*(one.places for one in self._learning.values())))


def _choose(parts: list[Calls]) -> StepMarker | None:
    """Choose a marker from one rank's calls, given in parts; None where nothing repeats often enough yet."""
    joined = Calls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("row", "start_s", "end_s")))
    return choose(joined)


def _common(found: list[StepMarker]) -> StepMarker:
    """Choose the marker that most ranks have; among equals that of fewest calls per step, with its highest rate."""
    count = Counter((one.row, one.per_step) for one in found)
    row, per_step = min(count, key=lambda one: (-count[one], one[1]))
    return max((one for one in found if (one.row, one.per_step) == (row, per_step)), key=lambda one: one.hz)


def _calls(events: Events) -> Calls:
    """Convert CALL events to Calls, in order of end."""
    end_s = (events["ts_ns"] + events["dur_ns"]) / 1e9
    order = np.argsort(end_s, kind="stable")
    return Calls(events["what"][order].astype(np.int64), events["ts_ns"][order] / 1e9, end_s[order])


def _written(pid: int, root: Path) -> int | None:
    """Read `write_bytes` of /proc/PID/io: bytes it caused to be written to disks; None if unreadable."""
    try:
        for line in procfs.read_file(procfs.proc_path(root, pid, "io"), 4096).splitlines():
            name, _, value = line.partition(b":")
            if name == b"write_bytes":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
