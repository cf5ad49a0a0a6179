"""What of many jobs and ranks is observed where there is no room for all: each user in turn, the largest first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rankscope.observer.census.found import FoundRank, user_of
from rankscope.observer.live import limits
from rankscope.probes.fair import by_kind, in_turn


def jobs_with_room(ranks: Sequence[FoundRank]) -> tuple[tuple[FoundRank, ...], str]:
    """The ranks of as many jobs as windows are made of, and what to say of the others; '' where there are none.

    Anybody has as many jobs as he names, a rank each: a user's largest is taken before another's second.
    """
    sizes = Counter(rank.identity.job for rank in ranks)
    if len(sizes) <= limits.JOBS:
        return tuple(ranks), ""
    whose = {rank.identity.job: user_of(rank) for rank in reversed(ranks)}
    of_users = by_kind(sorted(sizes, key=lambda one: (-sizes[one], one)), whose.__getitem__)
    kept = frozenset(in_turn(of_users, limits.JOBS))
    said = f"{len(sizes) - len(kept)} of the {len(sizes)} jobs of this host were not observed: there is room for {limits.JOBS}"
    return tuple(rank for rank in ranks if rank.identity.job in kept), said


def sampled_beside(unknown: Sequence[FoundRank]) -> tuple[list[int], str]:
    """Pids of as many of these ranks as py-spy runs beside at once, and what to say of the others; '' where there are none."""
    kept = [rank.pid for rank in in_turn(by_kind(unknown, user_of), limits.SAMPLED_BESIDE)]
    left = len(unknown) - len(kept)
    return kept, f"py-spy was run on {len(kept)} ranks alone: {left} more are without stacks" if left else ""
