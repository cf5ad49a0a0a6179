"""CPU time that other threads of a rank's process take from its training thread, and their
functions.

ran(r)    = CPU time of the process less that of its training threads, seconds per step
behind(r) = queue(r) · (1 - taken(r) / ready(r)); queue: of the training thread, seconds per step;
            ready: of all threads of the process; taken: by other processes meanwhile
behind_s  = the smaller of r's excess over the median of its peers in the two
Python    = the user's lowest function in which other Python threads compute more than the peers'
            (attribute.py)
native    = threads of one name that mostly run one function of a library (OpenMP, BLAS, OpenCV,
            ...), more than the peers' of that name

Either must have half of the excess of ran. Threads that are mostly in the kernel or in the C
library are reported, but are no suspects: they carry what the job sends and receives, which is more
on a rank with more neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.attribute import Located, Profiles
from rankscope.diagnose.infer.model.functions import sample
from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.base.arrays import Floats, Ints
from rankscope.probes.elf.c_library import is_c_library

_COMPUTING = ("", "gc")  # details of Python functions that are not sleeping
_NO_LIBRARY = ("", "kernel")
_Key = TypeVar("_Key")
_COUNT = re.compile(r" \(\d+ threads\)$")


@dataclass(frozen=True, slots=True)
class OwnThreads:
    """What other threads of a rank's process do, in seconds per step.

    `function`: where other Python threads compute more than the peers'. `native`: the threads
        without Python, 'name: function (n threads)', with half of the excess of ran; '' without
        such. `holds`: whether the function has that half, or the native threads do and are in a
        library's code.
    """

    ran_s: float = 0.0
    peers_ran_s: float = 0.0
    process_s: float = 0.0  # CPU time of the whole process
    behind_s: float = 0.0
    function: Located | None = None
    holds: bool = False
    native: str = ""

    @property
    def queue_s(self) -> float:
        """`behind_s` if the threads are identified, else 0."""
        return self.behind_s if self.holds else 0.0

    @property
    def part(self) -> float:
        """Share of the process's CPU time that these threads have and its peers' lack."""
        return min(max(self.ran_s - self.peers_ran_s, 0.0) / self.process_s, 1.0) if self.process_s > 0 else 0.0

    @property
    def in_python(self) -> bool:
        """Whether the identified threads run Python."""
        return self.holds and not self.native


def own_threads(fleet: Fleet, profiles: Profiles, row: int, peers: Ints) -> OwnThreads:
    """Compare the other threads of a rank's process (row) with those of these peers."""
    function = profiles.locate(row, peers, ("python",), 0.0, thread="other", details=_COMPUTING)
    peers = sample(peers[peers != row])
    ranks = np.append(row, peers)
    ran, behind = _ran_s(fleet, ranks), _behind_s(fleet, profiles, ranks)
    if not np.isfinite(ran[0]) or not np.isfinite(ran[1:] + behind[1:]).any():
        return OwnThreads(function=function)
    more_s, behind_s = _over(ran), max(min(_over(behind), _over(ran)), 0.0)
    holds = function is not None and function.excess_s >= limits.HOLDS_LEAST * more_s
    native = _native(fleet, ranks, limits.HOLDS_LEAST * more_s) if behind_s > 0 and not holds else ""
    holds = holds or (native != "" and _in_library(_parts(native)[1]))
    process_s = float((fleet.counters.total("cpu.process_run_s", ranks[:1]) / fleet.steps.of_those(ranks[:1]))[0])
    return OwnThreads(float(ran[0]), float(ran[0]) - more_s, process_s, behind_s, function, holds, native)


def _in_library(function: str) -> bool:
    """Whether a function is in code that the job brought, not in the kernel or the C library."""
    return function not in _NO_LIBRARY and not is_c_library(function)


def _over(seconds: Floats) -> float:
    """Excess of the first rank's value over the median of the others'; 0 if unknown."""
    return float(np.nan_to_num(seconds[0] - nan_median(seconds[1:], 0)))


def _ran_s(fleet: Fleet, ranks: Ints) -> Floats:
    """Return, per rank (row), the CPU seconds per step of its process without its training threads; NaN if unknown."""
    spent = fleet.counters.total("cpu.process_run_s", ranks) - fleet.counters.total("cpu.run_s", ranks)
    return np.asarray(spent / fleet.steps.of_those(ranks), dtype=np.float64)


def _behind_s(fleet: Fleet, profiles: Profiles, ranks: Ints) -> Floats:
    """Return, per rank (row), the seconds per step that its training thread queues behind its own process.

    NaN if it is not counted how long all threads of the process queued.
    """
    ready = fleet.counters.total("cpu.process_ready_s", ranks)
    taken = np.nan_to_num(fleet.counters.total("cpu.taken_s", ranks, without=fleet.ranks.pid))
    own = np.clip(1 - np.divide(taken, ready, out=np.ones(len(ranks)), where=ready > 0), 0.0, 1.0)
    return np.where(np.isnan(ready), np.nan, own * profiles.queued_s(ranks))


def _native(fleet: Fleet, ranks: Ints, least_s: float) -> str:
    """Return the kind of threads without Python that has the largest excess on the first rank, in words.

    `ranks`: the rank, then its peers. '' if that is below `least_s`, seconds per step.
    """
    # A thread's main function is known from few samples and may differ between equal threads; its
    # name does not.
    more = {told: min(_over(seconds), _over(of_name)) for told, seconds, of_name in _helpers(fleet, ranks)}
    best = max(more, key=lambda told: more[told], default="")
    return best if best and more[best] >= least_s else ""


def _helpers(fleet: Fleet, ranks: Ints) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield kinds of threads of the first rank, busiest first: (words, seconds, seconds of that name).

    CPU seconds per step by rank: of this kind (a name and a main function), and of all threads of
    the same name. A forged window may have a million threads: each row is read once and few kinds
    are summed.
    """
    instance, table = fleet.counters.table.instance, fleet.counters.table
    order = np.argsort(ranks, kind="stable")
    rows = np.concatenate([fleet.counters.rows_of("thread.run_s", each) for each in (ranks[:1], np.sort(ranks[1:]))])
    place = order[np.searchsorted(ranks[order], table.rank[rows])]
    spent = table.value[rows] / fleet.steps.of_those(ranks)[place]
    codes, kind = np.unique(instance.codes[rows], return_inverse=True)
    parts = [_parts(instance.values[code]) for code in codes.tolist()]
    first = np.bincount(kind[place == 0], weights=spent[place == 0], minlength=len(codes))
    own: dict[tuple[str, str], int] = {}
    for code in np.argsort(-first, kind="stable")[: np.count_nonzero(first > 0)].tolist():
        if len(own) < budgets.EXAMINED:
            own.setdefault(parts[code], code)
    of_key, of_name = _groups(parts, own), _groups([name for name, _ in parts], {name for name, _ in own})
    for code in own.values():
        seconds, of_all = (
            np.asarray(np.bincount(place[those], weights=spent[those], minlength=len(ranks)), dtype=np.float64)
            for those in (group[kind] == group[code] for group in (of_key, of_name))
        )
        yield instance.values[codes[code]], seconds, of_all


def _groups(of_codes: Sequence[_Key], wanted: Iterable[_Key]) -> Ints:
    """Return the index in `wanted` of each key in `of_codes`; -1 for others."""
    numbers = {one: number for number, one in enumerate(wanted)}
    return np.array([numbers.get(one, -1) for one in of_codes], dtype=np.int64)


def _parts(told: str) -> tuple[str, str]:
    """(name, main function) of threads described as 'name: function (3 threads)'; '' without a function."""
    name, _, leaf = _COUNT.sub("", told).partition(": ")
    return name, leaf
