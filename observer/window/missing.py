"""Which ranks should run on a host and are not in its window. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_LOCAL_CAP = 4096  # ranks of one host: a number of an environment is not believed beyond it


@dataclass(frozen=True, slots=True)
class LocalRank:
    """The columns of the table `ranks` that say where a rank runs."""

    job: str
    host: str
    container: str
    rank: int
    local_rank: int
    local_world_size: int


def missing_ranks(ranks: Iterable[LocalRank]) -> dict[str, tuple[int, ...]]:
    """Numbers by job of those whose siblings say that they run on the same host.

    A launcher numbers its ranks one after another, so rank - local rank is the same for all that it started; where one of them
    says how many there are (local_world_size), those that are not there are missing.
    """
    started: dict[tuple[str, str, str, int], set[int]] = {}
    sizes: dict[tuple[str, str, str, int], int] = {}
    for one in ranks:
        if one.local_rank < 0 or one.local_world_size <= one.local_rank or one.rank < one.local_rank:
            continue
        key = (one.job, one.host, one.container, one.rank - one.local_rank)
        started.setdefault(key, set()).add(one.rank)
        sizes[key] = max(sizes.get(key, 0), min(one.local_world_size, _LOCAL_CAP))
    found: dict[str, set[int]] = {}
    for (job, host, container, first), seen in started.items():
        size = sizes[job, host, container, first]
        if len(seen) < size:
            found.setdefault(job, set()).update(set(range(first, first + size)) - seen)
    return {job: tuple(sorted(gone)) for job, gone in found.items()}
