"""Which ranks should run on this host and were not found. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.observer.census.identity import RankIdentity


def missing_ranks(ranks: Iterable[RankIdentity]) -> dict[str, tuple[int, ...]]:
    """Numbers by job of those whose siblings say that they run here.

    A launcher numbers its ranks one after another, so rank - local rank is the same for all that it started; where one of them
    says how many there are (local_world_size), those without a process are missing.
    """
    started: dict[tuple[str, str, int], set[int]] = {}
    sizes: dict[tuple[str, str, int], int] = {}
    for one in ranks:
        if one.local_rank < 0 or one.local_world_size <= 0 or one.rank < one.local_rank:
            continue
        key = (one.job, one.container, one.rank - one.local_rank)
        started.setdefault(key, set()).add(one.rank)
        sizes[key] = max(sizes.get(key, 0), min(one.local_world_size, LOCAL_CAP))
    found: dict[str, tuple[int, ...]] = {}
    for (job, container, first), seen in started.items():
        gone = set(range(first, first + sizes[job, container, first])) - seen
        if gone:
            found[job] = (*found.get(job, ()), *sorted(gone))
    return found


LOCAL_CAP = 4096  # ranks of one host: a number of an environment is not believed beyond it
