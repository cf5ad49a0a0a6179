"""Decide when a census of the host is due, and make it.

It inspects all processes, so it is made only when new ones have appeared and settled, and every ten
minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.observer.apart.look import look
from rankscope.observer.census.found import RankCensus
from rankscope.observer.census.ranks import find_ranks
from rankscope.observer.watch.pulse import Pulse
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.base.patience import SILENT, mark_silent, patiently
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import Fair, whose

_CENSUS_ANYWAY_S = 600.0  # seconds; it takes 0.03-0.1 s of CPU
_CENSUS_AGAIN_S = 30.0  # seconds, after one for which this host had no resources
# Seconds; no steps are measured meanwhile. One of 10,000 processes takes half a second; a hostile
# user can make it four (census), and 10 by processes that do not answer (patience, mapped/reader):
# a census that is aborted finds no ranks.
_CENSUS_MOST_S = 30.0
# beyond so many seconds a census may take this share of the time, however often it is requested
_CENSUS_FREE_S, _CENSUS_SHARE = 0.5, 0.1
# Seconds after a process was first seen: has it loaded a library of ranks?
_LOOKS_AT_S = (3.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_LIST_EVERY_S = 3.0
# CPU seconds for reading what processes map, of all together, and then per user: 0.1 ms for most,
# 0.2 s for one with 60,000 mappings.
_MAPS_FREELY_S, _MAPS_EACH_S = 0.5, 0.1


def take_census(root: Path) -> RankCensus:
    """Take a census in a process without rights: the service runs for months, and a compromise of
    it would give root's.
    """
    return look(lambda: find_ranks(root, seeks_alone=False).brief(), RankCensus, longest_s=_CENSUS_MOST_S)


@dataclass(slots=True)
class _Process:
    """A process of the host: when it was first seen, and how often it was inspected."""

    since_s: float
    looks: int = 0


@dataclass(slots=True)
class Newcomers:
    """Takes a census of `root` when one is due."""

    pulse: Pulse
    root: Path
    _seen: dict[int, _Process] = field(default_factory=dict)  # pid -> live process
    _listed_s: float = float("-inf")
    _census_s: float = float("-inf")  # time of the last one; at once where -inf
    _no_census_until_s: float = float("-inf")

    def soon(self) -> None:
        """Make a census due at the next look: a restart may be near."""
        self._census_s = float("-inf")

    def postpone(self, what: str, error: OSError, now: float) -> None:
        """Make the next census due in `_CENSUS_AGAIN_S`, as the host refused a resource that any user can exhaust.

        `what`: what failed, in words, for a note; `now`: CLOCK_MONOTONIC, s.
        """
        self.pulse.postpone(what, error)
        self._census_s = now - _CENSUS_ANYWAY_S + _CENSUS_AGAIN_S

    def look(self, census: Callable[[Path], RankCensus], ranks: Container[int], now: float) -> RankCensus | None:
        """Take a census with `census` if one is due; None if not, or if it failed.

        `ranks`: known pids; `now`: CLOCK_MONOTONIC, s. Also marks processes that did not answer as
        silent.
        """
        if now - self._listed_s < _LIST_EVERY_S:
            return None
        self._listed_s = now
        try:
            self._list(now)
        except OSError as error:
            self.pulse.postpone("processes were not listed", error)
            return None
        if now < self._no_census_until_s or (
            now - self._census_s < _CENSUS_ANYWAY_S and not self._may_be_ranks(ranks, now)
        ):
            return None
        self._census_s = now
        try:
            told = self._ask(census)
        except RankscopeError as error:
            self.pulse.notes.add(f"ranks were not searched for: {error}")
            return None
        except OSError as error:  # any user can exhaust processes: no reason to end
            self.postpone("ranks were not searched for", error, now)
            return None
        mark_silent(one.pid for one in told.rejected if one.reason == SILENT)
        return told

    def _list(self, now: float) -> None:
        """Update `_seen` to the processes that exist now. Raises OSError.

        Those that ran long before the first call are never inspected one by one: the first census
        sees them.
        """
        here = set(procfs.pids(self.root))
        first = not self._seen
        ages = patiently(lambda: {pid: _age_s(pid, self.root) for pid in here}) if first else {}
        for pid in here - self._seen.keys():
            # Processes that run long before the service starts have loaded what they need: the
            # first census sees them.
            old = ages.get(pid, 0.0) > _LOOKS_AT_S[-1]
            self._seen[pid] = _Process(now, len(_LOOKS_AT_S) if old else 0)
        for pid in self._seen.keys() - here:
            del self._seen[pid]

    def _ask(self, census: Callable[[Path], RankCensus]) -> RankCensus:
        """Take a census and delay the next one after a long one, as any user can start processes
        without end.
        """
        began_s = time.monotonic()
        try:
            return census(self.root)
        finally:
            ended_s = time.monotonic()
            self._no_census_until_s = ended_s + max(ended_s - began_s - _CENSUS_FREE_S, 0.0) / _CENSUS_SHARE

    def _may_be_ranks(self, ranks: Container[int], now: float) -> bool:
        """Tell whether a process that is no rank has a library of ranks mapped.

        Inspected soon after it was seen, then ever less often, as a census for each new process
        would cost more than all the rest. A slow user's processes take no other user's time, and
        are inspected next time, the least inspected first.
        """
        due = [
            (process.looks, pid)
            for pid, process in self._seen.items()
            if pid not in ranks
            and process.looks < len(_LOOKS_AT_S)
            and now - process.since_s >= _LOOKS_AT_S[process.looks]
        ]
        found, fair = False, Fair(_MAPS_FREELY_S, _MAPS_EACH_S)
        for _, pid in sorted(due):
            user, began_s = partial(whose, pid, self.root), time.monotonic()
            if fair.left(user) <= 0:
                continue
            self._seen[pid].looks += 1
            found |= self.pulse.maps_a_library(pid)
            fair.spend(time.monotonic() - began_s, user)
        return found


def _age_s(pid: int, root: Path) -> float:
    """Return the seconds since the process was started; 0 where it has ended."""
    stat = stat_of(pid, root)
    return 0.0 if stat is None or isinstance(stat, OSError) else time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_s


def stat_of(pid: int, root: Path) -> procfs.ProcStat | OSError | None:
    """Read the stat of a process; None where it has ended; the error where unknown.

    For example it is silent, or this process has no descriptors left.
    """
    try:
        return procfs.read_stat(pid, root)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    except OSError as error:
        return error
