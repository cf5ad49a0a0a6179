"""What changed on the host while a window ran: jobs that were started, started again, or grew. Pure.

A window holds the processes that were ranks when it began. Processes that came later are in none, whatever numbers they have: here it
is told that they came, so that nobody takes the window for the whole of the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rankscope.observer.census.found import FoundRank
from rankscope.observer.window.folder import Window
from rankscope.observer.window.jobs import names

_TOLD = 16  # ranks, pids


def with_changes(windows: Sequence[Window], before: Sequence[FoundRank], after: Sequence[FoundRank]) -> list[Window]:
    """The windows with notes of what changed. `before`, `after`: the ranks of the host when the window began, and when it ended."""
    return [_with_notes(window, changes(window.manifest.jobs, before, after)) for window in windows]


def changes(jobs: Iterable[str], before: Sequence[FoundRank], after: Sequence[FoundRank]) -> tuple[str, ...]:
    """What changed, as the window of these jobs tells it."""
    mine, known = set(jobs), {_key(rank) for rank in before}
    alive = {_key(rank) for rank in after}
    came = [rank for rank in after if _key(rank) not in known]
    gone = [rank for rank in before if _key(rank) not in alive and rank.identity.job in mine]
    titles = {rank.identity.job: rank.identity.title for rank in (*before, *after)}
    called = names(titles)
    notes = []
    numbers = {rank.identity.rank for rank in gone}
    again = [rank for rank in came if rank.identity.job in mine and rank.identity.rank in numbers]
    if again:
        notes.append(f"{_ranks(again)} started again while observed: what the new processes do is not in this window")
    more = [rank for rank in came if rank.identity.job in mine and rank.identity.rank not in numbers]
    if more:
        notes.append(f"{_ranks(more)} started while observed: not in this window")
    others = {rank.identity.job for rank in came if rank.identity.job not in mine}
    for job in sorted(others - {rank.identity.job for rank in before}):
        same = titles[job] in {rank.identity.title for rank in gone} and not (again or more)
        what = "the job was started again under another name" if same else "another job was started"
        notes.append(f"{what} while observed, and is not in this window: {called[job]}")
    return tuple(notes)


def _with_notes(window: Window, notes: tuple[str, ...]) -> Window:
    return replace(window, manifest=replace(window.manifest, notes=(*notes, *window.manifest.notes)))


def _key(rank: FoundRank) -> tuple[int, int]:
    return rank.pid, rank.start_ticks


def _ranks(ranks: Sequence[FoundRank]) -> str:
    """'rank 1 (pid 77)', 'ranks 0, 1 (pids 76, 77)'."""
    ordered = sorted(ranks, key=lambda rank: rank.identity.rank)[:_TOLD]
    ending = ", …" if len(ranks) > _TOLD else ""
    numbers = ", ".join(str(rank.identity.rank) for rank in ordered) + ending
    pids = ", ".join(str(rank.pid) for rank in ordered) + ending
    return f"ranks {numbers} (pids {pids})" if len(ranks) > 1 else f"rank {numbers} (pid {pids})"
