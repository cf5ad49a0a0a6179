"""Find ranks that should run on a host but are not in its window. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_LOCAL_CAP = 4096  # ranks per host: larger numbers in an environment are not trusted

_NUMBERS_MOST = 1 << 20  # reported numbers: no job has as many ranks, and beyond it the count suffices


@dataclass(frozen=True, slots=True)
class LocalRank:
    """The columns of the table `ranks` that locate a rank."""

    job: str
    host: str
    container: str
    netns: int
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


@dataclass(frozen=True, slots=True)
class Missing:
    """The number of a job's missing ranks; `numbers`: those that are known."""

    count: int
    numbers: tuple[int, ...]


def missing_ranks(ranks: Iterable[LocalRank]) -> dict[str, Missing]:
    """Find, by job, the missing ranks from the local world sizes of their siblings.

    If in one location (host, container, network) a local rank occurs k times, there are k
    launchers, so k x local_world_size ranks should be there. Only the count is certain: numbers may
    alternate between hosts (mpirun --map-by node).
    """
    places: dict[tuple[str, str, str, int], list[LocalRank]] = {}
    for one in ranks:
        if 0 <= one.local_rank < min(one.local_world_size, _LOCAL_CAP):
            places.setdefault((one.job, one.host, one.container, one.netns), []).append(one)
    counts: dict[str, int] = {}
    numbers: dict[str, list[int]] = {}
    left = _NUMBERS_MOST
    for (job, *_), here in places.items():
        size = min(max(one.local_world_size for one in here), _LOCAL_CAP)
        launchers = max(Counter(one.local_rank for one in here).values())
        count = launchers * size - len(here)
        if count > 0:
            counts[job] = counts.get(job, 0) + count
            told = _numbers(here, size, launchers) if launchers * size <= min(_LOCAL_CAP, left) else ()
            left -= len(told)
            numbers.setdefault(job, []).extend(told)
    return {job: Missing(count, tuple(numbers[job])) for job, count in counts.items()}


def _numbers(here: list[LocalRank], size: int, launchers: int) -> tuple[int, ...]:
    """Return the missing rank numbers of one location where they can be derived, else ().

    They can where all of the job's ranks should be `here`, or each launcher numbers its own
    consecutively. `size`: ranks per launcher.
    """
    seen = {one.rank for one in here}
    if all(one.world_size == size for one in here):
        return tuple(sorted(set(range(size)) - seen))
    firsts = Counter(one.rank - one.local_rank for one in here)
    if len(firsts) == launchers and min(firsts.values()) > 1 and min(firsts) >= 0:
        return tuple(sorted({first + place for first in firsts for place in range(size)} - seen))
    return ()
