"""Connect one service, through the store, with those of its jobs' other hosts; agreements as in together.py."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankscope.diagnose.service.alarms import Alarm
from rankscope.diagnose.service.hosts.courier import Courier
from rankscope.diagnose.service.hosts.share import Share, judged_of
from rankscope.diagnose.service.hosts.together import Alone, Begin, ClockSet, Judged, Remark, Together, Turn
from rankscope.diagnose.service.hosts.trigger import Pace
from rankscope.diagnose.service.looks.look import Seen
from rankscope.observer.watch.ranks import RankPulse
from rankscope.observer.window.store.keys import label_of
from rankscope.probes.base.clocks import Clocks, read_clocks, stepped_s
from rankscope.probes.host.machine import machine_id
from rankscope.probes.host.namespaces import host_name

_APART_S = 0.5  # largest difference of hosts' clocks


def hosts_of(ranks: Sequence[RankPulse]) -> int:
    """Estimate on how many hosts the job of these ranks runs, from its world size; 1 without ranks."""
    if not ranks:
        return 1
    identity = ranks[0].found.identity
    if identity.world_size <= len(ranks):
        return 1
    return max(-(-identity.world_size // (identity.local_world_size or len(ranks))), 2)


@dataclass(slots=True)
class Others:
    """The other hosts of this host's jobs. `spool`: folder in which windows wait for the store."""

    uri: str
    spool: Path
    pace: Pace = field(default_factory=Pace)
    host: str = field(default_factory=lambda: label_of(host_name(), machine_id()))
    _together: Together = field(init=False)
    _hosts: dict[str, int] = field(default_factory=dict)
    _seen: dict[tuple[str, float], Seen] = field(
        default_factory=dict
    )  # by job and begin: seen by this host, judged by another
    _clocks: Clocks = field(default_factory=read_clocks)  # since they were last set
    _set_s: float = 0.0  # by how much in total
    # the same at the time when a look was agreed on
    _set_before_s: dict[tuple[str, float], float] = field(default_factory=dict)
    _told: list[ClockSet | Alone] = field(default_factory=list)  # clock steps, for the next `take`

    def __post_init__(self) -> None:
        self._together = Together(self.host, Courier(self.uri), self.pace)

    def propose(self, alarm: Alarm, seconds: float, ready: bool) -> None:
        """Propose a look of `seconds` to all hosts, unless this host has one pending. `ready`: a look here is prepared."""
        if not self._together.is_proposed(alarm.job):
            self._together.propose(alarm, seconds, time.time(), ready)

    def agreed(self) -> list[str]:
        """List the jobs with a pending look that this host proposed, the soonest first."""
        return self._together.agreed()

    def call(self, in_common: Mapping[str, str]) -> None:
        """Set `in_common`: this host's name of a job, which depends on its other jobs, -> its name on all hosts."""
        self._together.in_common = in_common

    def take(
        self, jobs: Mapping[str, int], unready: Collection[str] = ()
    ) -> Iterator[Begin | Alone | Turn | Remark | ClockSet | Seen]:
        """Yield what is to be done now: looks to begin, verdicts to give or received, remarks, steps of the clock.

        `jobs`: those with ranks here, with their number of hosts; `unready`: those without a prepared look.
        """
        self._hosts = {job: hosts for job, hosts in jobs.items() if hosts > 1}
        self._seen = {which: seen for which, seen in self._seen.items() if which[0] in jobs}
        self._set_before_s = {which: set_s for which, set_s in self._set_before_s.items() if which[0] in jobs}
        self._notice_clock()
        told, self._told = self._told, []
        yield from told
        for task in self._together.take(time.time(), self._hosts, unready):
            if isinstance(task, Judged):
                yield self._judged(task)
            else:
                yield task

    def share(self, task: Begin | Turn, earlier: float | None) -> Share:
        """Return the settings of an agreed look; this host judges if it put the trigger, or takes its turn.

        `earlier`: begin of the job's last healthy look of all hosts, Unix time; None if unknown.
        """
        self._set_before_s.setdefault((task.job, task.trigger.start), self._set_s)
        ours = isinstance(task, Turn) or task.ours
        hosts = self._hosts.get(task.job, 2)
        called = self._together.in_common.get(task.job, "")
        return Share(self.uri, self.spool, task.trigger, ours, hosts, self.host, earlier, self.pace, called)

    def sent(self, seen: Seen) -> None:
        """Record that this host's window was sent, and that another host is to judge it."""
        assert seen.share is not None
        self._notice_clock()
        which = seen.alarm.job, seen.share.trigger.start
        self._seen[which] = seen
        set_by = self._set_s - self._set_before_s.pop(which, self._set_s)
        self._together.sent(seen.share.trigger, seen.share.hosts, time.time(), set_by)

    def close(self) -> None:
        """Close the connection to the store."""
        self._together.close()

    def _notice_clock(self) -> None:
        """Handle a step of this host's clock by 0.5 s or more: drop agreements by the old one; `take` reports it."""
        clocks = read_clocks()
        by_s = stepped_s(self._clocks, clocks)
        if abs(by_s) >= _APART_S:
            self._clocks = clocks
            self._set_s += by_s
            self._told += [ClockSet(by_s), *self._together.clock_set(by_s)]

    def _judged(self, task: Judged) -> Remark | Seen:
        """Return another host's verdict as result of this host's look; a Remark if unreadable, or without such a look."""
        seen = self._seen.pop((task.job, task.trigger.start), None)
        try:
            host, verdict = judged_of(task.content, self._together.in_common.get(task.job, task.job))
        except ValueError as error:
            return Remark(task.job, f"not heard: {error}")
        if seen is None or seen.share is None:
            return Remark(task.job, f"{host} judged a look that this host had no part in")
        return replace(seen, verdict={**verdict, "job": task.job}, trouble="", kept="", judged_by=host)
