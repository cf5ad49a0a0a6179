"""Find missing ranks: their siblings' launcher started them on this host, but no process is them.

None is reported where some process was not inspected, nor for a user with a process that claims to
be a rank but was rejected: it may be the missing one, or a shell that is about to start it. Nor
where the numbers of the siblings are guesses, nor where fewer are present than missing: then their
local world size is not trusted (pods of one rank each, say).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from rankscope.observer.census.describe import local_rank
from rankscope.observer.census.found import FoundRank, Gone
from rankscope.observer.census.rules.draft import Draft
from rankscope.observer.window.missing import missing_ranks


def find_gone(draft: Draft, ranks: Sequence[FoundRank], members: Collection[int]) -> Iterator[Gone]:
    """Yield the missing ranks. `ranks`: built from the draft; `members`: the pids of their workers."""
    scan = draft.scan
    if scan.unreadable or scan.denied or scan.notes:
        return
    guessed = {rank.identity.job for rank in ranks if rank.guessed}
    doubtful = _claim_in_vain(draft, members)
    sure = [rank for rank in ranks if rank.identity.job not in guessed and rank.owner not in doubtful]
    there = Counter(rank.identity.job for rank in sure)
    for job, missing in missing_ranks(local_rank(rank.identity) for rank in sure).items():
        if len(missing.numbers) == missing.count < there[job]:
            yield from (Gone(job, number) for number in missing.numbers)


def _claim_in_vain(draft: Draft, members: Collection[int]) -> set[int]:
    """Return users with a process that claims an absent rank and is no launcher, worker or ancestor
    of a rank.
    """
    there = {(chosen.claim.job, chosen.claim.rank) for _, chosen in draft.chosen.items()}
    above = {each for pid in draft.chosen for each in draft.above(pid)}
    return {
        one.owner
        for pid, one in draft.scan.candidates.items()
        if one.claim is not None and (one.claim.job, one.claim.rank) not in there
        and pid not in draft.chosen and pid not in members and pid not in above
    }  # fmt: skip
